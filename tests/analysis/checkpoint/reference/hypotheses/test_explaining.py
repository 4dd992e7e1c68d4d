"""Faults planted in codes and scales that ml_dtypes has made: each is named first, with its factor, and alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.reference.hypotheses import explain
from fp8debug.analysis.checkpoint.reference.pair import Pair

Array = npt.NDArray[Any]
PairOf = Callable[..., Pair]

BLOCK, SHAPE = (64, 64), (200, 260)
E4M3, E5M2, FNUZ, E2M1 = (
    ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float4_e2m1fn,
)  # fmt: skip
LARGEST = {E4M3: 448.0, E5M2: 57344.0, FNUZ: 240.0, E2M1: 6.0}


def bf16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def amax(x: Array, block: tuple[int, int]) -> Array:
    rows, columns = (-(-n // b) for n, b in zip(x.shape, block, strict=True))
    padded = np.zeros((rows * block[0], columns * block[1]), np.float32)
    padded[: x.shape[0], : x.shape[1]] = np.abs(x)
    found: Array = padded.reshape(rows, block[0], columns, block[1]).max((1, 3))
    return found


def spread(grid: Array, block: tuple[int, int], shape: tuple[int, int]) -> Array:
    return np.repeat(np.repeat(grid, block[0], 0)[: shape[0]], block[1], 1)[:, : shape[1]]


def cast(scaled: Array, dtype: Any = E4M3) -> Array:
    return np.clip(scaled, -LARGEST[dtype], LARGEST[dtype]).astype(np.float32).astype(dtype).view(np.uint8)


def quantise(x: Array, block: tuple[int, int], dtype: Any = E4M3, largest: float = 0) -> tuple[Array, Array]:
    scales = np.maximum(amax(x, block) / np.float32(largest or LARGEST[dtype]), np.float32(1e-30))
    return cast(x / spread(scales, block, x.shape), dtype), scales


def up(scales: Array) -> Array:
    return np.exp2(np.ceil(np.log2(np.maximum(scales.astype(np.float64), 2.0**-120)))).astype(np.float32)


@cache
def weights(kind: int, *, blocks_differ: bool, seed: int = 0) -> Array:
    """Normal, heavy-tailed, or as real layers: rows and columns of different size, one that stands out, a dead row."""
    rng = np.random.default_rng((kind, seed))
    x = rng.standard_t(3, SHAPE) if kind == 1 else rng.standard_normal(SHAPE)
    if kind == 2:
        x = x * np.exp(rng.standard_normal((SHAPE[0], 1)) * 0.4 + rng.standard_normal((1, SHAPE[1])) * 0.3)
        x[:, 5] *= 6
        x[7] = 0
    if blocks_differ:
        x = x * np.exp2(spread(rng.uniform(-2, 2, (4, 5)), BLOCK, SHAPE))
    return bf16((x * 0.02).astype(np.float32))


Planted = tuple[Pair, str, float | None]


def of_one_scale(pair_of: PairOf, kind: int) -> Iterator[Planted]:
    x = weights(kind, blocks_differ=False)
    codes, grid = quantise(x, SHAPE)
    s = grid.reshape(-1)
    one = float(s[0])
    yield pair_of(x, codes, 1 / s), "inverted", 1 / one**2
    yield pair_of(x, codes, s, divides=True), "inverted", 1 / one**2
    yield pair_of(x, codes, np.ones(1)), "lost_scales", 1 / one
    yield pair_of(x, cast(x), s), "unscaled", one
    yield pair_of(x, codes, s**2), "applied_twice", one
    yield pair_of(x, codes, np.sqrt(s)), "scaled_twice", one**-0.5
    yield pair_of(x, codes, s * 8), "power_of_two", 8
    yield pair_of(x, quantise(x, SHAPE, largest=240)[0], s), "range_mismatch", 240 / 448
    yield pair_of(x, codes, s * 448 / 240), "range_mismatch", 448 / 240
    yield pair_of(x, codes, s * 448 / 57344), "power_of_two", 1 / 128
    yield pair_of(x, codes, up(s)), "ceil_scale", float(up(s)[0]) / one
    yield pair_of(x, codes, up(s) / 2), "floor_scale", float(up(s)[0]) / 2 / one
    yield pair_of(x, codes, s * 0.83), "stale", 0.83
    yield pair_of(x, codes, -s), "sign", -1
    half, columns = codes.copy(), codes.copy()
    half[120:], columns[:, 3:9] = 0, 0
    yield pair_of(x, half, s), "zeroed", None
    yield pair_of(x, columns, s), "zeroed", None
    yield pair_of(x, cast(x / s * 3), s / 3), "clipped", None
    yield pair_of(weights(kind, blocks_differ=False, seed=1), codes, s), "different_weights", None
    yield pair_of(x, codes, s, fmt="E4M3FNUZ"), "fnuz", 0.5
    in_fnuz, of_fnuz = quantise(x, SHAPE, FNUZ)
    yield pair_of(x, in_fnuz, of_fnuz.reshape(-1)), "fnuz", 2
    in_e5m2, of_e5m2 = quantise(x, SHAPE, E5M2)
    yield pair_of(x, in_e5m2, of_e5m2.reshape(-1)), "element_format", None
    yield pair_of(x, codes, s, fmt="E5M2"), "element_format", None
    integers = np.rint(x / (np.abs(x).max() / 127)).astype(np.int8).view(np.uint8)
    yield pair_of(x, integers, np.array([np.abs(x).max() / 127])), "integers", None


def of_blocks(pair_of: PairOf, kind: int) -> Iterator[Planted]:
    x, rng = weights(kind, blocks_differ=True), np.random.default_rng(kind)
    codes, s = quantise(x, BLOCK)

    def pair(codes: Array, scales: Array, **more: Any) -> Pair:
        return pair_of(x, codes, scales, **{"block": BLOCK, **more})

    yield pair(codes, 1 / s), "inverted", None
    yield pair(codes, np.ones_like(s)), "lost_scales", None
    yield pair(codes, np.full_like(s, s.max())), "lost_scales", None
    yield pair(codes, np.ascontiguousarray(s.T).reshape(s.shape)), "transposed_grid", None
    yield pair(codes, s[::-1]), "permuted_grid", None
    yield pair(codes, np.roll(s, 1, axis=1)), "permuted_grid", None
    yield pair(codes, rng.permutation(s.reshape(-1)).reshape(s.shape)), "permuted_grid", None
    yield pair(codes, up(s)), "ceil_scale", None
    yield pair(codes, up(s) / 2), "floor_scale", None
    yield pair(codes, np.exp2(np.rint(np.log2(s)))), "nearest_scale", None
    yield pair(codes, s * 2), "power_of_two", 2
    yield pair(codes, s * 1.1), "stale", 1.1
    yield pair(codes, s * rng.uniform(0.8, 1.25, s.shape)), "other_scales", None
    one_off = s.copy()
    one_off[2, 3] *= 4
    yield pair(codes, one_off), "few_blocks", 4
    yield pair(quantise(x, (32, 32))[0], s), "block_size", None
    # 200 lines in 4 rows of scales: the size that divides evenly is 50.
    yield pair(codes, s, block=(50, 64)), "block_size", None
    others = {"layers.1.k_proj.weight_scale": s, "layers.2.q_proj.weight_scale": s * 1.3}
    yield pair(codes, quantise(weights(kind, blocks_differ=True, seed=1), BLOCK)[1], others=others), "other_layer", None
    swapped = s.astype(np.float32).byteswap()
    yield pair(codes, swapped), "byte_order", None
    once = codes.view(E4M3).astype(np.float32) * spread(s, BLOCK, SHAPE)
    yield pair(cast(once / spread(up(s), BLOCK, SHAPE)), up(s)), "second_rounding", None
    yield pair(below(x / spread(s, BLOCK, SHAPE))[0], s), "truncation", None
    yield pair(by_chance(x / spread(s, BLOCK, SHAPE), rng), s), "stochastic_rounding", None


def below(scaled: Array) -> tuple[Array, Array]:
    """Codes of the next magnitude below, and above."""
    nearest = cast(scaled)
    is_above = np.abs(nearest.view(E4M3).astype(np.float32)) > np.abs(scaled)
    low = np.where(is_above, nearest - 1, nearest).astype(np.uint8)
    return low, np.where((low & 0x7F) < 0x7E, low + 1, low).astype(np.uint8)


def by_chance(scaled: Array, rng: np.random.Generator) -> Array:
    low, high = below(scaled)
    a, b = (np.abs(codes.view(E4M3).astype(np.float32)) for codes in (low, high))
    share = np.divide(np.abs(scaled) - a, b - a, out=np.zeros_like(a), where=b > a)
    return np.where(rng.random(SHAPE) < share, high, low)


def of_small_blocks(pair_of: PairOf, kind: int) -> Iterator[Planted]:
    x = bf16(weights(kind, blocks_differ=True)[:128, :128] * np.exp2(np.arange(128) / 32).astype(np.float32))
    s = up(amax(x, (1, 32)) / np.float32(448))
    codes, exponents = cast(x / spread(s, (1, 32), x.shape)), (np.log2(s) + 127).astype(np.uint8)
    tiles = exponents.reshape(1, 4, 32, 1, 4).transpose(0, 3, 2, 1, 4).reshape(exponents.shape)

    def mx(codes: Array, scales: Array, encoding: str = "E8M0") -> Pair:
        return pair_of(x, codes, scales, block=(1, 32), encoding=encoding)

    yield mx(codes, exponents + 1), "e8m0_bias", 2
    yield mx(codes, exponents, "U8"), "e8m0_as_integer", None
    yield mx(codes, exponents.astype(np.float32), "F32"), "e8m0_as_integer", None
    yield mx(codes, tiles), "swizzled_grid", None
    floor = (np.floor(np.log2(np.maximum(amax(x, (1, 32)), 2.0**-112))) - 8 + 127).astype(np.uint8)
    yield mx(codes, floor), "mx_rounding", None
    tensor = np.float32(np.abs(x).max() / 2688)
    block = (amax(x, (1, 16)) / 6 / tensor).astype(np.float32).astype(E4M3)
    fours = cast(x / np.maximum(spread(block.astype(np.float32) * tensor, (1, 16), x.shape), 1e-30), E2M1)
    exchanged = np.ascontiguousarray(fours.reshape(128, -1, 2)[:, :, ::-1]).reshape(x.shape)
    halves = np.stack([fours[:, :64], fours[:, 64:]], axis=2).reshape(x.shape)

    def nvfp4(codes: Array, second: float | np.floating[Any] | None) -> Pair:
        return pair_of(x, codes, block.view(np.uint8), fmt="E2M1", block=(1, 16), encoding="E4M3", second=second)

    yield nvfp4(fours, 1 / tensor), "inverted", 1 / float(tensor) ** 2
    yield nvfp4(fours, None), "missing_second_level", 1 / float(tensor)
    yield nvfp4(fours, 1.0), "wrong_second_level", 1 / float(tensor)
    yield nvfp4(exchanged, tensor), "nibble_order", None
    yield nvfp4(halves, tensor), "packing", None


def of_square(pair_of: PairOf, kind: int) -> Iterator[Planted]:
    x = bf16(weights(kind, blocks_differ=False)[:144, :144] * np.exp2(np.arange(144)[:, None] / 64).astype(np.float32))
    codes, s = quantise(x, (144, 144))
    yield pair_of(x, np.ascontiguousarray(codes.T), s.reshape(-1)), "transposed", None
    codes, s = quantise(x, (1, 144))
    yield pair_of(x, codes, s.reshape(1, -1), layout="column"), "transposed_grid", None
    yield pair_of(x, codes, up(s)), "ceil_scale", None
    yield pair_of(x, codes, s / 2), "power_of_two", 0.5


GROUPS = {"scale": of_one_scale, "block": of_blocks, "small": of_small_blocks, "square": of_square}
MAY_ALSO_BE = {
    "fnuz": {"power_of_two"},
    "power_of_two": {"fnuz"},
    "e8m0_bias": {"fnuz"},
    "e8m0_as_integer": {"scale_format"},
}
"""Other readings that leave the same values, or cannot be told from them."""


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("kind", [1, 2], ids=["heavy", "real"])
def test_what_was_planted_is_named_first_and_nothing_else_is(pair_of: PairOf, group: str, kind: int) -> None:
    wrong = []
    for index, (pair, name, factor) in enumerate(GROUPS[group](pair_of, kind)):
        found = explain(pair)
        right_factor = factor is None or (found[0].factor is not None and abs(found[0].factor / factor - 1) < 2e-3)
        names = {one.name for one in found[1:]} - MAY_ALSO_BE.get(name, set()) - {name}
        is_explained = name == "different_weights" or found[0].explains > 0.98
        if found[0].name != name or not right_factor or names or not is_explained:
            wrong.append((index, name, factor, [(one.name, one.factor, one.explains) for one in found]))
    assert not wrong


def test_a_scale_that_another_role_has_too_is_told_whose_it_is(pair_of: PairOf) -> None:
    x, other = weights(0, blocks_differ=False), weights(0, blocks_differ=False, seed=1)
    wrong = np.abs(other).max() / 448 * 1.3
    codes, _ = quantise(x, SHAPE)
    (found, *_) = explain(pair_of(x, codes, wrong, others={"layers.1.k_proj.weight_scale": wrong}))
    assert found.name == "copied_scale"
    assert "layers.1.q_proj.weight_scale holds the same number as layers.1.k_proj.weight_scale" in found.message
