"""What measuring must not do: disturb the training, other threads, forked children, or later measurements."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch

from fp8debug.formats import E4M3
from fp8debug.hooks.measure import Counted, Engine, load_engine
from fp8debug.hooks.measure.counting import histogram, jit, scratch
from fp8debug.hooks.measure.counting.count import CHUNK, CROWDED, PROBES
from fp8debug.hooks.measure.counting.numba_engine import NumbaEngine

BF16, FP32 = torch.bfloat16, torch.float32


@pytest.fixture(params=["numba", "torch"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    engine = load_engine(request.param)
    engine.warm_up()
    return engine


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_storage_stays_resizable(dtype: torch.dtype, engine: Engine) -> None:
    """FSDP2 frees the weights that it has gathered by resizing their storage to nothing."""
    t = torch.randn(64, 64).to(dtype)
    counted = engine.count(t, dtype)
    engine.health(t, dtype)
    engine.tensor_error_sums(t, [(np.float32(2.0), E4M3)], counted)
    t.untyped_storage().resize_(0)


def same(a: Counted, b: Counted) -> bool:
    """Whether two results are equal in every bit."""
    arrays = np.array_equal(a.values.view(np.uint32), b.values.view(np.uint32)) and np.array_equal(a.counts, b.counts)
    return arrays and (a.health, a.checksum, a.approx) == (b.health, b.checksum, b.approx)


def test_the_training_does_not_notice(engine: Engine) -> None:
    leaf = torch.randn(40, 30, requires_grad=True)
    t = leaf * 2
    before = leaf.detach().clone()
    state, threads, version = torch.get_rng_state(), torch.get_num_threads(), t._version
    for measured in (leaf, t, t.t(), t.to(BF16)):
        counted = engine.count(measured, BF16)
        engine.health(measured, BF16)
        engine.error_sums(counted.values, counted.counts, [(np.float32(1), E4M3)])
    engine.tensor_error_sums(t, [(np.float32(1), E4M3)])
    assert torch.equal(torch.get_rng_state(), state)
    assert (torch.get_num_threads(), t._version, torch.is_grad_enabled()) == (threads, version, True)
    assert torch.equal(leaf, before)
    t.sum().backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, torch.full_like(leaf, 2))


def test_inference_tensors_are_measured(engine: Engine) -> None:
    with torch.inference_mode():
        t = torch.ones(3, 5)
        assert engine.count(t, BF16).health.n == engine.health(t, FP32).n == 15


@pytest.mark.parametrize("turn", [lambda t: t, lambda t: t.t(), lambda t: t[:, 1:]], ids=["whole", "transposed", "cut"])
def test_no_tensor_is_kept(engine: Engine, turn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    t = torch.randn(30, 40).to(BF16)
    counted = engine.count(turn(t), BF16)
    health = engine.health(turn(t), BF16)
    alive = weakref.ref(t.untyped_storage())
    reference = weakref.ref(t)
    del t
    gc.collect()
    assert (alive(), reference()) == (None, None)
    assert counted.health.n == health.n
    engine.count(torch.zeros(3000).to(BF16), BF16)  # a result is no view of tables that are used again
    assert counted.counts.sum() == health.n


def test_two_threads_count_at_once(engine: Engine) -> None:
    tensors = [torch.randn(30_000, generator=torch.Generator().manual_seed(i)).relu().to(BF16) for i in range(2)]
    alone = [engine.count(t, BF16) for t in tensors]
    wrong: list[int] = []

    def work(i: int) -> None:
        wrong.extend(i for _ in range(30) if not same(engine.count(tensors[i], BF16), alone[i]))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_counts(engine: Engine) -> None:
    t = torch.randn(5000).to(BF16)
    expected = engine.count(t, BF16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python >= 3.12 warns of threads; that is what is tried
        child = os.fork()
    if child == 0:
        os._exit(0 if same(engine.count(t, BF16), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_interrupted_count_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = NumbaEngine()
    t = torch.randn(5000).to(BF16)
    expected = engine.count(t, BF16)
    with monkeypatch.context() as patch:
        patch.setattr(scratch.Scratch, "take_sparse", lambda self, infinity: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            engine.count(t, BF16)
    assert same(engine.count(t, BF16), expected)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, FP32, torch.float64, torch.float8_e4m3fn])
def test_tables_emptied_on_the_way_add_up(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    engine = NumbaEngine()
    t = torch.randn(67, 31).to(dtype)
    t[3, 3] = float(torch.finfo(dtype).max)
    for turned in (t, t.t()):
        expected = engine.count(turned, dtype)
        with monkeypatch.context() as patch:
            patch.setattr(histogram, "PASS", 64)
            assert same(engine.count(turned, dtype), expected)


@pytest.mark.parametrize("dtype", [BF16, FP32])
@pytest.mark.parametrize(("n_probed", "share"), [(251, 1.0), (2048, 1.0), (2048, 0.01)], ids=["16", "8 and 16", "8"])
def test_a_code_too_frequent_for_narrow_counters_that_the_probes_miss(
    n_probed: int, share: float, dtype: torch.dtype
) -> None:
    # Places that are looked at hold many values; one value is in so many others that counters of so many bits overflow.
    codes = np.arange(CHUNK) % 30_000 + 0x100
    codes[np.arange(CHUNK) % 1000 < 1000 * share] = 0x4020
    for place in range(4):
        codes[place :: CHUNK // PROBES] = np.arange(place, 4 * PROBES, 4) % n_probed + 0x100
    t = torch.from_numpy(codes.astype(np.int16)).view(BF16)
    counted = load_engine("numba").count(t.to(dtype), BF16)
    expected, counts = np.unique(codes, return_counts=True)
    assert counts.max() > (1 << 16 if share == 1 else 1 << 8) and CROWDED > 0
    np.testing.assert_array_equal(counted.values.view(np.uint32) >> 16, expected)
    np.testing.assert_array_equal(counted.counts, counts)


def peak_kb() -> int:
    """Largest resident memory of this process since the peak was reset."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))


@pytest.mark.parametrize("dtype", [BF16, FP32])
def test_counting_fp32_takes_no_memory_of_its_size(dtype: torch.dtype) -> None:
    t, engine = torch.randn(1 << 24), load_engine("numba")
    engine.count(t[:1000], dtype)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    before = peak_kb()
    assert engine.count(t, dtype).counts.sum() == t.numel()
    assert peak_kb() - before < t.nbytes / 1024 / 8


def test_a_kernel_without_a_place_for_its_cache_is_compiled() -> None:
    scope: dict[str, Any] = {}
    exec("def twice(x):\n    return 2 * x", scope)  # no file, so that numba finds no folder beside it
    assert jit.kernel("int64(int64)")(scope["twice"])(4) == 8


def test_a_full_disk_costs_the_cache_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numba.core.caching.FunctionCache, "save_overload", fail)

    def thrice(x: int) -> int:
        return 3 * x

    assert jit.kernel("int64(int64)")(thrice)(4) == 12
