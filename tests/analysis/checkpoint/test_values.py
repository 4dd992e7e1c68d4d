"""Conventions applied: codes and scales made values, against arithmetic written out here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.values import Dequantiser

Written = Callable[..., Path]
RNG = np.random.default_rng(1)


def test_partial_last_blocks_have_their_own_scale(written: Written) -> None:
    codes = RNG.integers(0, 0x7F, (150, 70)).astype(np.uint8)
    scale = RNG.random((3, 2)).astype(np.float32)
    path = written({"a.weight": ("F8_E4M3", codes), "a.weight_scale_inv": ("F32", scale)})
    grid = Scale("a.weight_scale_inv", "weight", "F32", (3, 2), False, "block", (64, 64))
    with open_store(path) as store:
        dequantiser = Dequantiser(store, Quantised("a.weight", "a", "E4M3", (150, 70), (grid,)))
        bands = list(dequantiser.bands(700))
        positions = np.arange(0, 150 * 70, 37)
        single, factors = dequantiser.at(positions)
    got = np.concatenate([values for _, values in bands])
    values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    expected = np.array([[values[i, j] * scale[i // 64, j // 64] for j in range(70)] for i in range(150)])
    assert [first for first, _ in bands] == list(range(0, 150, 10))
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(single * factors, expected.reshape(-1)[positions])


def test_packed_nibbles_with_two_levels_of_which_one_divides(written: Written) -> None:
    packed = np.array([[0x21, 0xA3], [0x70, 0x0F]], np.uint8)
    block = np.array([[0x38], [0x40]], np.uint8)  # 1 and 2 in E4M3
    path = written(
        {"a.weight_packed": ("U8", packed), "a.weight_scale": ("F8_E4M3", block), "a.g": ("F32", np.array([4.0]))}
    )
    scales = (
        Scale("a.weight_scale", "weight", "E4M3", (2, 1), False, "block", (1, 4)),
        Scale("a.g", "tensor", "F32", (1,), True, "tensor"),
    )
    with open_store(path) as store:
        dequantiser = Dequantiser(store, Quantised("a.weight_packed", "a", "E2M1", (2, 4), scales, True))
        ((_, got),) = dequantiser.bands()
        codes, factors = dequantiser.at(np.array([1, 2, 6]))
    np.testing.assert_array_equal(got, np.array([[0.5, 1, 1.5, -1], [0, 6, -6, 0]]) / 4 * [[1], [2]])
    np.testing.assert_array_equal(codes, [1, 1.5, -6])
    np.testing.assert_array_equal(factors, [0.25, 0.25, 0.5])
