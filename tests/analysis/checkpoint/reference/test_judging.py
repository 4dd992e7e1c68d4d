"""Verdicts on tensors that were rounded rightly, and on those that were not; codes are made by ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor
from fp8debug.analysis.checkpoint.reference.judging import judge
from fp8debug.analysis.checkpoint.reference.lines import lines_of
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.store import open_store

Array = npt.NDArray[Any]
Written = Callable[..., Path]
N, K = 256, 256
TYPES = {
    "E4M3": (ml_dtypes.float8_e4m3fn, 448.0, 8), "E5M2": (ml_dtypes.float8_e5m2, 57344.0, 15),
    "E4M3FNUZ": (ml_dtypes.float8_e4m3fnuz, 240.0, 7), "E2M1": (ml_dtypes.float4_e2m1fn, 6.0, 2),
}  # fmt: skip


def bf16(x: Array) -> Array:
    return x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def spread(grid: Array, block: tuple[int, int]) -> Array:
    return np.repeat(np.repeat(grid, block[0], 0), block[1], 1)


@dataclass
class Made:
    """Codes and the factors of their blocks, as a writer makes them."""

    fmt: str
    block: tuple[int, int]
    kind: str
    codes: Array
    scale: Array
    second: float = 1.0

    def tensors(self) -> dict[str, tuple[str, Array]]:
        codes, scale = self.codes, self.scale
        if self.fmt == "E2M1":
            codes = codes[:, 0::2] | codes[:, 1::2] << 4
        stored = {"w": ("U8" if self.fmt == "E2M1" else f"F8_{self.fmt}", codes)}
        dtype = {"float": "F32", "static": "F32", "nvfp4": "F8_E4M3"}.get(self.kind, "F8_E8M0")
        return stored | {"s": (dtype, scale), "g": ("F32", np.array([self.second]))}

    def quantised(self) -> Quantised:
        encoding = {"float": "F32", "static": "F32", "nvfp4": "E4M3"}.get(self.kind, "E8M0")
        scale = Scale("s", "weight", encoding, self.scale.shape, False, "block", self.block)
        second = Scale("g", "tensor", "F32", (1,), False, "tensor")
        return Quantised("w", "w", self.fmt, (N, K), (scale, second), self.fmt == "E2M1")

    @property
    def values(self) -> Array:
        got = self.codes.view(TYPES[self.fmt][0]).astype(np.float32)
        values: Array = got * spread(self.scale, self.block) * np.float32(self.second)
        return values


def made(x: Array, fmt: str, block: tuple[int, int], kind: str, largest: float | None = None) -> Made:
    """Scales by the largest magnitude of a block: as float, power of two (floor, ceil), or E4M3 with a second level."""
    dtype, most, exponent = TYPES[fmt]
    amax = np.abs(x).reshape(N // block[0], block[0], K // block[1], block[1]).max((1, 3)).astype(np.float32)
    safe, second = np.where(amax == 0, 1, amax), np.float32(1)
    if kind == "floor":
        scale = 2.0 ** (np.floor(np.log2(safe)) - exponent)
    elif kind == "ceil":
        scale = 2.0 ** np.ceil(np.log2(safe / most))
    elif kind == "nvfp4":
        second = np.float32(amax.max() / (448 * 6) or 1)
        scale = (amax / 6 / second).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    else:
        scale = np.ones_like(safe) if kind == "static" else safe / np.float32(largest or most)
    factors = spread(scale.astype(np.float32), block) * second
    with np.errstate(all="ignore"):
        scaled = np.where(factors == 0, 0, x / factors)
    codes = np.clip(scaled, -most, most).astype(np.float32).astype(dtype).view(np.uint8)
    return Made(fmt, block, kind, codes, scale.astype(np.float32), float(second))


Judge = Callable[..., ComparedTensor]


@pytest.fixture
def judged(written: Written) -> Iterator[Judge]:
    """`judged(made, reference)`: of a plain reference as an array and its dtype, or of another quantised one."""
    with ExitStack() as kept:
        count = iter(range(1000))

        def opened(tensors: Mapping[str, tuple[str, Array]]) -> Any:
            return kept.enter_context(open_store(written(tensors, folder=str(next(count)))))

        def run(
            ours: Made | Array, theirs: Made | Array, dtype: str = "BF16", our_dtype: str = "BF16"
        ) -> ComparedTensor:
            sides = []
            for one, plain in ((ours, our_dtype), (theirs, dtype)):
                store = opened(one.tensors() if isinstance(one, Made) else {"w": (plain, one)})
                sides.append((store, one.quantised() if isinstance(one, Made) else store.tensors["w"]))
            (store, tensor), (reference_store, reference) = sides
            lines = lines_of(reference_store, reference)
            return judge(Pair(store, tensor, reference_store, reference, lines), "w")

        yield run


WRITERS = {
    "blocks": ("E4M3", (128, 128), "float", None), "tensor": ("E4M3", (N, K), "float", None),
    "rows": ("E4M3", (1, K), "float", None), "e5m2": ("E5M2", (N, K), "float", None),
    "fnuz": ("E4M3FNUZ", (1, K), "float", None), "to 240": ("E4M3", (N, K), "float", 240.0),
    "mxfp8 floor": ("E4M3", (1, 32), "floor", None), "mxfp8 ceil": ("E4M3", (1, 32), "ceil", None),
    "mxfp4": ("E2M1", (1, 32), "floor", None), "nvfp4": ("E2M1", (1, 16), "nvfp4", None),
}  # fmt: skip
DRAW = np.random.default_rng(5)
WEIGHTS = {
    "normal": normal(N, K) * 0.02,
    "heavy tails": DRAW.standard_t(1.5, (N, K)) * 0.01,
    "rows of all sizes": normal(N, K) * 10 ** DRAW.uniform(-6, 0, (N, 1)),
    "rows of zeros": normal(N, K) * (DRAW.random((N, 1)) > 0.3),
    "columns 100 times as large": normal(N, K) * np.where(DRAW.random((1, K)) < 0.01, 100, 1),
    "sparse": normal(N, K) * (DRAW.random((N, K)) < 0.001),
    "of all magnitudes": np.sign(normal(N, K)) * 10 ** DRAW.uniform(-8, 0, (N, K)),
    "constant": np.full((N, K), 0.0425),
    "zero": np.zeros((N, K)),
}


@pytest.mark.parametrize("weights", WEIGHTS)
def test_what_was_rounded_rightly_is_never_called_different(weights: str, judged: Judge) -> None:
    x = bf16(WEIGHTS[weights])
    verdicts = {name: judged(made(x, *writer), x).verdict for name, writer in WRITERS.items()}
    expected = {"constant": {"recoded", "faithful"}, "zero": {"recoded"}}.get(weights, {"faithful"})
    assert set(verdicts.values()) <= expected, verdicts
    # And the other way round: the master against what was made of it.
    for name in ("blocks", "tensor", "mxfp4"):
        assert judged(x, made(x, *WRITERS[name])).verdict in {"faithful", "recoded", "identical"}


def test_two_roundings_of_one_master_are_faithful_to_each_other(judged: Judge) -> None:
    for weights in ("heavy tails", "rows of all sizes"):
        x = bf16(WEIGHTS[weights])
        some = {name: made(x, *WRITERS[name]) for name in ("blocks", "tensor", "mxfp8 floor", "nvfp4")}
        for one, other in permutations(some.values(), 2):
            assert judged(one, other).verdict in ("faithful", "requantised")
        for one in some.values():
            assert judged(one, one).verdict == "identical"


@pytest.mark.parametrize(
    ("factor", "rows"),
    [(2.0, slice(1)), (1.07, slice(1)), (0.0, slice(1)), (0.5, slice(1)), (1.03, slice(None)), (1e-3, slice(None))],
)
def test_one_block_or_all_with_another_scale(factor: float, rows: slice, judged: Judge) -> None:
    x = bf16(WEIGHTS["normal"])
    one = made(x, *WRITERS["blocks"])
    scale = one.scale.copy()
    scale[rows, : 1 if rows.stop else None] *= np.float32(factor)
    tensor = judged(replace(one, scale=scale), x)
    assert tensor.verdict == "different"
    if rows.stop:
        assert tensor.worst_block == (0, 0)
        off = tensor.block_gain_max if factor > 1 else tensor.block_gain_min
        assert off == pytest.approx(factor, abs=0.01) and tensor.block_gain_median == pytest.approx(1, abs=0.01)
    else:
        assert tensor.gain == pytest.approx(factor, rel=0.01)


def test_a_single_block_of_32_and_a_single_row(judged: Judge) -> None:
    x = bf16(WEIGHTS["normal"])
    mx = made(x, *WRITERS["mxfp8 ceil"])
    scale = mx.scale.copy()
    scale[7, 3] *= 2
    tensor = judged(replace(mx, scale=scale), x)
    assert (tensor.verdict, tensor.worst_block) == ("different", (7, 3))
    blocks = made(x, *WRITERS["blocks"])
    codes = blocks.codes.copy()
    codes[5] = 0
    assert judged(replace(blocks, codes=codes), x).verdict == "different"


def test_equal_values_in_another_encoding(judged: Judge) -> None:
    x = bf16(WEIGHTS["normal"])
    one = made(x, *WRITERS["mxfp8 ceil"])
    halved = replace(one, scale=one.scale / 2, second=2.0)
    assert judged(one, halved).verdict == "recoded"
    assert judged(one, one.values, "F32").verdict == "recoded"
    blocks = made(x, *WRITERS["blocks"])
    tensor = judged(blocks, blocks.values, "BF16")  # rounded once more, to 8 bits
    assert tensor.verdict == "recoded" and tensor.sqnr_db == pytest.approx(55.6, abs=0.5)
    assert judged(blocks, replace(blocks, scale=blocks.scale * np.float32(1.02))).verdict == "different"


def test_plain_tensors(judged: Judge) -> None:
    x = bf16(WEIGHTS["normal"])
    assert judged(x, x).verdict == "identical"
    assert judged(x, x, "F32").verdict == "recoded"
    wide = (WEIGHTS["normal"]).astype(np.float32)
    tensor = judged(wide, wide, "F32", "BF16")
    assert tensor.verdict == "faithful" and tensor.sqnr_db == pytest.approx(55.6, abs=0.5)
    assert judged(x * 1.02, x).verdict == "different"
    one_off = x.copy()
    one_off[3, 4] = 9
    assert judged(one_off, x).verdict == "different"


def test_values_that_are_not_finite(judged: Judge) -> None:
    x = bf16(WEIGHTS["normal"])
    one = made(x, *WRITERS["blocks"])
    codes = one.codes.copy()
    codes[3, 4] = 0x7F
    tensor = judged(replace(one, codes=codes), x)
    assert (tensor.verdict, tensor.n_nonfinite) == ("different", 1)
    both = x.copy()
    both[3, 4] = np.nan
    assert judged(replace(one, codes=codes), both).verdict == "faithful"
    assert judged(x * 0 + np.nan, x).gain is None


def test_a_second_rounding_and_one_that_the_scale_does_not_suit(judged: Judge) -> None:
    x = bf16(WEIGHTS["normal"])
    twice = judged(made(made(x, *WRITERS["blocks"]).values, *WRITERS["mxfp8 ceil"]), x)
    assert twice.verdict == "requantised" and twice.sqnr_db == pytest.approx(28.6, abs=0.5)
    assert twice.healthy_sqnr_db == pytest.approx(31.5, abs=0.3)
    cast = judged(made(x * 0.1, "E4M3", (N, K), "static"), bf16(x * 0.1))
    assert (cast.verdict, cast.worst_block) == ("different", None)
    assert cast.nearest is not None and cast.nearest > 0.99


def test_a_tensor_of_zeros_that_is_not_zero_here(judged: Judge) -> None:
    x = bf16(WEIGHTS["normal"])
    tensor = judged(made(x, *WRITERS["blocks"]), x * 0)
    assert (tensor.verdict, tensor.gain, tensor.sqnr_db) == ("different", None, None)
