"""Rounding modes of MX scales, and rules of others: codes written here by ml_dtypes from scales by formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.reference.hypotheses import MxRounding, name_mx_rounding, name_scale_rule
from fp8debug.analysis.checkpoint.reference.pair import Pair

Array = npt.NDArray[Any]
PairOf = Callable[..., Pair]


def exponents(amax: Array, mode: str) -> Array:
    """E8M0 codes, by the definitions: floor(log2 amax) - 8, plus one by the significand."""
    significand, exponent = np.frexp(amax.astype(np.float64))
    significand, exponent = significand * 2, exponent - 1
    up = {
        "FLOOR": np.zeros(amax.shape, bool), "CEIL": significand > 1, "RCEIL": significand > 1.75,
        "EVEN": significand >= 1.9375,
    }  # fmt: skip
    if mode == "NEAREST":
        nearest: Array = (np.rint(np.log2(amax.astype(np.float64) / 448)) + 127).astype(np.uint8)
        return nearest
    codes: Array = (exponent - 8 + up[mode] + 127).astype(np.uint8)
    return codes


def written(pair_of: PairOf, x: Array, codes: Array) -> MxRounding:
    scales = np.exp2(codes.astype(np.float64) - 127).astype(np.float32)
    spread = np.repeat(scales, 32, axis=1)[:, : x.shape[1]]
    elements = np.clip(x / spread, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    found = name_mx_rounding(pair_of(x, elements, codes, block=(1, 32), encoding="E8M0"))
    assert found is not None
    return found


@pytest.mark.parametrize("mode", ["FLOOR", "RCEIL", "CEIL", "EVEN", "NEAREST"])
def test_each_mode_is_named_and_alone(pair_of: PairOf, mode: str) -> None:
    x = np.random.default_rng(0).standard_normal((256, 80)).astype(np.float32)
    padded = np.pad(np.abs(x), ((0, 0), (0, 16)))
    found = written(pair_of, x, exponents(padded.reshape(256, 3, 32).max(2), mode))
    assert (found.modes, found.n_blocks) == ((mode,), 768)
    assert found.message.startswith(f"block scales were rounded by {mode}: it fits all 768 blocks; ")


def test_blocks_that_do_not_tell_modes_apart_are_said_to_be_so(pair_of: PairOf) -> None:
    x = np.tile(np.float32(449), (4, 32))
    found = written(pair_of, x, np.full((4, 1), 128, np.uint8))
    assert found.modes == ("RCEIL", "CEIL")
    assert found.message.startswith("block scales were rounded by one of RCEIL and CEIL, which fit all 4 blocks alike")
    assert written(pair_of, x / 2, np.full((4, 1), 120, np.uint8)).modes == ()


@pytest.mark.parametrize(
    ("largest", "change", "encoding", "words"),
    [
        (448, lambda s: s, "F32", "amax / 448"),
        (240, lambda s: s, "F32", "amax / 240"),
        (224, lambda s: s, "F32", "amax / 224"),
        (448, lambda s: np.exp2(np.ceil(np.log2(s))), "F32", "amax / 448 rounded up to a power of two"),
        (448, lambda s: np.exp2(np.floor(np.log2(s))), "F32", "amax / 448 rounded down to a power of two"),
        (448, lambda s: s, "BF16", "amax / 448 rounded to BF16"),
    ],
)
def test_the_rule_of_scales_is_named(
    pair_of: PairOf, largest: int, change: Callable[[Array], Array], encoding: str, words: str
) -> None:
    x = (np.random.default_rng(1).standard_normal((96, 128)) * 0.02).astype(np.float32)
    scales = change(np.abs(x).reshape(3, 32, 2, 64).max((1, 3)) / np.float32(largest))
    found = name_scale_rule(pair_of(x, np.zeros(x.shape, np.uint8), scales, block=(32, 64), encoding=encoding))
    assert found is not None
    assert (found.rules, found.largest, found.n_fit, found.n) == ((words,), largest, 6, 6)
    assert found.message == f"scales are {words}, in 6 of 6 blocks"


def test_a_rule_that_is_not_known_is_not_made_up(pair_of: PairOf) -> None:
    x = (np.random.default_rng(2).standard_normal((96, 128)) * 0.02).astype(np.float32)
    scales = np.abs(x).reshape(3, 32, 2, 64).max((1, 3)) / np.float32(448) * np.float32(1.01)
    found = name_scale_rule(pair_of(x, np.zeros(x.shape, np.uint8), scales, block=(32, 64)))
    assert found is not None and found.rules == () and found.message.startswith("no known rule gives")
