"""Sums of a pair of tensors, against arithmetic on whole arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.reference import pair as pairs
from fp8debug.analysis.checkpoint.reference.lines import JoinedLines, Part, PlainLines, TransposedLines, lines_of
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.store import open_store

Written = Callable[..., Path]
RNG = np.random.default_rng(3)
CODES = RNG.integers(0, 0x7F, (3, 50, 70)).astype(np.uint8)
GRID = (1 + RNG.random((3, 4, 5))).astype(np.float32)
FACTORS = np.repeat(np.repeat(GRID, 16, 1), 16, 2)[:, :50, :70]
X = (CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * (1 + 0.1 * RNG.standard_normal(CODES.shape))).astype(
    np.float32
)
X[1, 7, 3] = np.nan
SCALE = Scale("w_scale_inv", "weight", "F32", GRID.shape, False, "block", (16, 16))


@pytest.fixture
def stack(written: Written, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Three stacked matrices whose blocks are cut by their ends, read in bands that cut blocks too."""
    monkeypatch.setattr(pairs, "BAND_ELEMENTS", 7 * 70)
    path = written({"w": ("F8_E4M3", CODES), "w_scale_inv": ("F32", GRID)})
    with open_store(path) as store, open_store(written({"w": ("F32", X)}, folder="reference")) as reference:
        stored = reference.tensors["w"]
        tensor = Quantised("w", "w", "E4M3", CODES.shape, (SCALE,))
        yield Pair(store, tensor, reference, stored, PlainLines(reference, stored))


def by_blocks(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    padded = np.zeros((3, 64, 80))
    padded[:, :50, :70] = values
    sums: npt.NDArray[np.float64] = padded.reshape(3, 4, 16, 5, 16).sum((2, 4)).reshape(12, 5)
    return sums


def test_sums_of_blocks_that_stacked_matrices_cut(stack: Pair) -> None:
    sums = stack.sums()
    x = np.where(np.isnan(X), 0, X).astype(np.float64)
    q = (CODES.view(ml_dtypes.float8_e4m3fn).astype(np.float32) * FACTORS).astype(np.float64)
    q[1, 7, 3] = 0
    np.testing.assert_array_equal(sums.n, by_blocks(~np.isnan(X)))
    assert sums.n_nonfinite.sum() == sums.n_nonfinite[4, 0] == 1
    np.testing.assert_allclose(sums.sum_x2, by_blocks(x * x))
    np.testing.assert_allclose(sums.sum_q2, by_blocks(q * q))
    np.testing.assert_allclose(sums.sum_xq, by_blocks(x * q))
    np.testing.assert_allclose(sums.sum_err2, by_blocks((x - q) ** 2))
    assert sums.gain == pytest.approx((x * q).sum() / (x * x).sum())


def test_sums_over_codes_give_what_a_pass_with_the_factors_gives(stack: Pair) -> None:
    codes = stack.code_sums()
    for grids in (None, {"w_scale_inv": GRID.reshape(-1, 5)[::-1].copy()}):
        read = stack.sums(grids)
        told = codes.times(stack.code_factors(codes, grids))
        for name in ("n", "n_nonfinite", "sum_x2", "sum_q2", "sum_xq", "sum_err2"):
            np.testing.assert_allclose(getattr(told, name), getattr(read, name), rtol=1e-6)
    assert stack.code_sums() is codes
    # Values were made around the codes themselves: the best factor is near 1 whatever scale is stored.
    np.testing.assert_allclose(codes.best_factors(), 1, atol=0.15)


def test_blocks_finer_than_those_of_the_scale(stack: Pair) -> None:
    fine = stack.code_sums((8, 8))
    assert fine.n.shape == (21, 9)  # ceil(50 / 8) of each matrix
    told = fine.times(stack.code_factors(fine)).total
    assert told.sum_err2 == pytest.approx(stack.sums().total.sum_err2, rel=1e-9)


def test_a_factor_that_is_not_finite_takes_its_block_out(stack: Pair) -> None:
    codes = stack.code_sums()
    factors = stack.code_factors(codes)
    factors[0, 0] = np.inf
    sums = codes.times(factors)
    assert sums.n[0, 0] == 0 and sums.n_nonfinite[0, 0] == 256
    assert np.isnan(sums.block_gain()[0, 0]) and np.isfinite(sums.total.sum_err2)


def test_rows_of_too_many_blocks_are_left_out_evenly(stack: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stack.code_sums((1, 5))
    monkeypatch.setattr(pairs, "MOST_CODE_BLOCKS", 40 * 14)
    sample = stack.code_sums((1, 10))
    assert (whole.is_sample, sample.is_sample) == (False, True)
    assert sample.lines.tolist() == list(range(0, 150, 2))
    np.testing.assert_allclose(sample.sum_x2, (whole.sum_x2[::2, 0::2] + whole.sum_x2[::2, 1::2]))


def test_too_many_blocks_are_taken_together(stack: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stack.sums()
    monkeypatch.setattr(pairs, "MOST_BLOCKS", 30)
    few = stack.sums()
    assert few.n.shape == (6, 5)
    np.testing.assert_allclose(few.sum_err2, whole.sum_err2[::2] + whole.sum_err2[1::2])


def test_other_formats_and_one_line_more(written: Written) -> None:
    codes = np.array([[0x38, 0x40], [0x30, 0x80]], np.uint8)  # 1, 2, 0.5, -0
    with ExitStack() as kept:
        store = kept.enter_context(open_store(written({"w": ("F8_E4M3", codes)})))
        reference = kept.enter_context(open_store(written({"w": ("BF16", np.array([[1.0, 2.0]]))}, folder="r")))
        stored = reference.tensors["w"]
        pair = Pair(store, Quantised("w", "w", "E4M3", (2, 2), ()), reference, stored, PlainLines(reference, stored))
        assert pair.lines == 1
        assert pair.sums().is_exact
        half = pair.sums(fmt="E4M3FNUZ")
        assert half.gain == 0.5
        np.testing.assert_array_equal(half.block_gain(), [[0.5]])
        assert np.isinf(pair.sums().block_sqnr_db()[0, 0])


def test_lines_of_fused_and_transposed_tensors(written: Written) -> None:
    q, k = np.arange(12.0).reshape(3, 4), np.arange(12.0, 20.0).reshape(2, 4)
    with open_store(written({"q": ("BF16", q), "k": ("F32", k), "t": ("F16", q.T)})) as store:
        whole = [lines_of(store, store.tensors[name]) for name in ("q", "k")]
        joined = JoinedLines([Part(whole[0], 1, 3), Part(whole[1], 0, 2)])
        np.testing.assert_array_equal(joined.values(0, 4), np.concatenate([q[1:], k]))
        np.testing.assert_array_equal(joined.values(1, 3), np.concatenate([q[2:], k[:1]]))
        turned = TransposedLines(store, store.tensors["t"])
        np.testing.assert_array_equal(turned.values(1, 3), q[1:])
