"""Sums of the blocks of a band of lines, and where blocks begin."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.reference.blocks import BlockSums, CodeSums, block_sums_of
from fp8debug.formats import BoolArray, Float32Array
from fp8debug.metrics import Float64Array

Rows = npt.NDArray[np.intp]


def rows_of(lines: int, matrix_lines: int, block_lines: int) -> Rows:
    """For each line its row of blocks, which never cross from one stacked matrix into the next."""
    line = np.arange(lines)
    rows: Rows = line // matrix_lines * -(-matrix_lines // block_lines) + line % matrix_lines // block_lines
    return rows


def starts_of(rows: Rows) -> Rows:
    """Where another row of blocks begins."""
    if not len(rows):
        return np.empty(0, np.intp)
    return np.concatenate([np.zeros(1, np.intp), np.flatnonzero(np.diff(rows)) + 1])


def runs_of(starts: Rows, kept: Rows, lines: int, step: int) -> Iterator[tuple[int, int]]:
    """First and last line of the rows of blocks that are kept, no more than `step` at a time."""
    ends = np.append(starts, lines)
    for index in kept:
        for first in range(int(ends[index]), int(ends[index + 1]), step):
            yield first, min(int(ends[index + 1]), first + step)


def _finite_only(x: Float32Array, q: Float32Array) -> tuple[Float64Array, Float64Array, BoolArray | None]:
    """Both in float64, what is not finite in either set to zero in both; where both are finite, None: everywhere."""
    finite = np.isfinite(x)
    finite &= np.isfinite(q)
    if finite.all():
        return x.astype(np.float64), q.astype(np.float64), None
    zero = np.float32(0)
    return np.where(finite, x, zero).astype(np.float64), np.where(finite, q, zero).astype(np.float64), finite


def _counts(shape: tuple[int, ...], width: int, finite: BoolArray | None) -> tuple[Float64Array, Float64Array]:
    """Finite and other elements of each block of each line."""
    lines, length = shape
    starts = np.arange(0, length, width)
    of_all = np.broadcast_to(np.minimum(width, length - starts).astype(np.float64), (lines, len(starts)))
    if finite is None:
        return of_all, np.zeros_like(of_all)
    held = finite.astype(np.float64)
    n = block_sums_of(held, held, width)
    return n, of_all - n


def band_sums(x32: Float32Array, q32: Float32Array, width: int) -> BlockSums:
    """Sums of each block of each line."""
    x, q, finite = _finite_only(x32, q32)
    n, n_nonfinite = _counts(x.shape, width, finite)
    sum_x2, sum_q2, sum_xq = block_sums_of(x, x, width), block_sums_of(q, q, width), block_sums_of(x, q, width)
    x -= q
    return BlockSums(n, n_nonfinite, sum_x2, sum_q2, sum_xq, block_sums_of(x, x, width))


def add_code_band(sums: CodeSums, rows: Rows, x32: Float32Array, c32: Float32Array) -> None:
    x, c, finite = _finite_only(x32, c32)
    n, n_nonfinite = _counts(x.shape, sums.width, finite)
    add_to_rows(sums.n, rows, n)
    add_to_rows(sums.n_nonfinite, rows, n_nonfinite)
    add_to_rows(sums.sum_x2, rows, block_sums_of(x, x, sums.width))
    add_to_rows(sums.sum_c2, rows, block_sums_of(c, c, sums.width))
    add_to_rows(sums.sum_xc, rows, block_sums_of(x, c, sums.width))


def add_to_rows(grid: Float64Array, rows: Rows, of_lines: Float64Array) -> None:
    """Add sums of lines to those of their rows of blocks; `rows` ascend."""
    starts = starts_of(rows)
    grid[rows[starts]] += np.add.reduceat(of_lines, starts, axis=0)
