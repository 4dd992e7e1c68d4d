"""Measuring on a device: what the kernels say, how it comes to the host, and that nobody waits for it."""

from __future__ import annotations

import gc
import importlib.util
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fp8debug.hooks.measure import Health, UnsupportedDtype
from fp8debug.hooks.measure.codes import route
from fp8debug.hooks.measure.device import DeviceCounter, Reading, is_on_accelerator, tally, torch_kernels
from fp8debug.hooks.measure.device.landing import Landing

CHECKS = Path(__file__).with_name("device_checks.py")
NOTHING = Reading(Health(1, 0, 0, 0, 0, 0, 1.0, 1.0), None, (0, None))


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("device_checks", CHECKS)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torch_kernels_say_what_the_engine_says(checks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_kernels, "CHUNK", 1024)
    assert checks.check_all(torch_kernels.TorchKernels(), (1, 7, 2500)) == 3 * 9 * 9 + 6
    checks.check(DeviceCounter(), checks.distributions(3000)["not finite"].double(), torch.float64)


def test_triton_kernels_say_what_the_engine_says() -> None:
    ran = subprocess.run(
        [sys.executable, str(CHECKS)],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, f"{9 + 8 + 6} tensors\n"), ran.stderr


def test_triton_kernels_compile_for_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes what the compiler refuses. Needs no GPU; vectors of BF16 are loaded 16 bytes at once."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from fp8debug.hooks.measure.device import triton_kernels as kernels

    hopper, options = GPUTarget("cuda", 90, 32), {"num_warps": kernels.WARPS, "enable_fp_fusion": False}
    pointers = {"bits": "*i16", "tables": "*i32", "head": "*i64", "flags": "*u8"}
    shared = {"WIDTH": 2, "ROUND": 0, "HAS_FLAGS": True, "IS_SHORT": True, "BLOCK": kernels.BLOCK}
    bad = {"CODES": 65536, "BAD_FROM": 0x7F80, "BAD_ALONE": -1, "MARKS": True, "TABLES": kernels.TABLES}
    for kernel, constants in (
        (kernels._count, shared | bad),
        (kernels._health, shared | {"SIGN": 0x7FFF, "INFINITY": 0x7F80}),
    ):
        types = {name: pointers.get(name, "constexpr" if name in constants else "i32") for name in kernel.arg_names}
        aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(types) if name in {*pointers, "n"}}
        source = ASTSource(kernel, types, constexprs=constants, attrs=aligned)
        assert "ld.global.v4.b32" in compile(source, target=hopper, options=options).asm["ptx"]


def test_of_very_many_rows_only_the_first_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "MAX_ROWS", 4)
    t = torch.zeros(5, 3)
    t[2, 1] = t[4, 0] = torch.inf
    assert DeviceCounter().count(t, torch.float32).reading().nonfinite_rows == (None, 2)
    assert DeviceCounter().health(t[:4], torch.float32).reading().nonfinite_rows == (1, 2)
    assert DeviceCounter().health(t[:2], torch.float32).reading().nonfinite_rows == (0, None)


def test_inference_mode_leaves_nothing_behind_that_only_it_may_change() -> None:
    counter, t = DeviceCounter(), torch.tensor([1.0, -2.0])
    with torch.inference_mode():
        inside = counter.count(t * 2, torch.float32).reading()
    outside = counter.count(t * 2, torch.float32).reading()
    assert (inside.health.amax, outside.health) == (4.0, inside.health)


def test_where_triton_does_not_run_torch_counts_and_it_is_said() -> None:
    said: list[str] = []
    counter = DeviceCounter(note=said.append)
    assert counter.count(torch.ones(3), torch.bfloat16).reading().health.n == 3
    assert counter.health(torch.ones(3), torch.bfloat16).reading().health.amax == 1
    assert counter.kernels_of(torch.device("cpu")).name == "torch"
    (message,) = said
    assert message.startswith("Triton does not run on cpu: torch's operations count there, slower (")


def test_what_is_on_the_host_stays_there_and_what_is_no_number_is_refused_at_once() -> None:
    assert not is_on_accelerator(torch.ones(2))
    with pytest.raises(UnsupportedDtype, match=r"torch.int32 cannot be measured"):
        DeviceCounter().count(torch.ones(2, dtype=torch.int32), torch.bfloat16)


def test_memory_is_that_of_the_counters_and_a_byte_a_row() -> None:
    t = torch.ones(10, 4, dtype=torch.bfloat16)
    way = route(t.dtype, t.dtype)
    counted, looked_at = tally.new_tally(t, way, counts=True), tally.new_tally(t, way, counts=False)
    assert counted.numbers.untyped_storage().nbytes() == 65536 * 8 + 16 * 8 + 10
    assert looked_at.numbers.untyped_storage().nbytes() == 16 * 8 + 10


def test_a_bounded_number_is_under_way_and_nothing_is_kept() -> None:
    landing, may_read = Landing(torch.device("cpu"), limit_bytes=40), threading.Event()

    def read(numbers: Any) -> Reading:
        may_read.wait(10)
        return NOTHING._replace(nonfinite_rows=(int(numbers[0]), None))

    sent = [torch.full((2,), i, dtype=torch.int64) for i in range(2)]
    held = [weakref.ref(numbers) for numbers in sent]
    arriving = [landing.send(numbers, read) for numbers in sent]
    del sent
    third = threading.Thread(target=lambda: arriving.append(landing.send(torch.full((2,), 2), read)))
    third.start()
    third.join(0.1)
    assert third.is_alive(), "48 bytes would be under way"
    may_read.set()
    third.join(10)
    assert [one.reading().nonfinite_rows[0] for one in arriving] == [0, 1, 2]
    gc.collect()
    assert [numbers() for numbers in held] == [None, None]


def test_an_error_on_the_way_is_met_where_the_reading_is_wanted_and_makes_room_again() -> None:
    landing = Landing(torch.device("cpu"), limit_bytes=16)

    def read(numbers: Any) -> Reading:
        if numbers[0]:
            raise RuntimeError("the device is gone")
        return NOTHING

    bad = landing.send(torch.ones(2, dtype=torch.int64), read)
    assert landing.send(torch.zeros(2, dtype=torch.int64), read).reading() == NOTHING
    with pytest.raises(RuntimeError, match="the device is gone"):
        bad.reading()


def test_the_copy_waits_for_the_kernels_and_only_our_thread_for_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and events of a device that does as it is told when it is told, and writes down what."""
    log: list[tuple[str, str]] = []

    def note(what: str, result: object = None) -> Any:
        log.append((what, threading.current_thread().name))
        return result

    event = SimpleNamespace(synchronize=lambda: note("synchronize"))
    side = SimpleNamespace(
        wait_stream=lambda stream: note(f"side waits for {stream}"), record_event=lambda: note("record", event)
    )

    class On:
        def __init__(self, stream: object) -> None:
            assert stream is side

        def __enter__(self) -> None:
            note("side stream on")

        def __exit__(self, *_: object) -> None:
            note("side stream off")

    module = SimpleNamespace(Stream=lambda device: side, current_stream=lambda device: "kernels", stream=On)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    pinned = []
    empty = torch.empty

    def host(*args: Any, pin_memory: bool, **options: Any) -> torch.Tensor:
        pinned.append(pin_memory)
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", host)
    landing = Landing(torch.device("cuda"))
    for value in (5, 6):
        sent = landing.send(torch.tensor([value]), lambda n: NOTHING._replace(nonfinite_rows=(int(n[0]), None)))
        assert sent.reading().nonfinite_rows == (value, None)
    here, reader = threading.current_thread().name, "fp8debug-device_0"
    ways = ("side waits for kernels", "side stream on", "record", "side stream off")
    assert [what for what in log if what[0] != "synchronize"] == [(way, here) for way in ways] * 2
    assert [name for what, name in log if what == "synchronize"] == [reader] * 2
    assert pinned == [True], "pinned once, used again"
    np.testing.assert_equal(landing._under_way, 0)
