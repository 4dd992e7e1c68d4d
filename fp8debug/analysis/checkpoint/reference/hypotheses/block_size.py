"""Scales of blocks of another size than they are read with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells, ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import each_cell
from fp8debug.errors import escape
from fp8debug.formats import Float32Array
from fp8debug.metrics import Float64Array

_SIZES = (1, 16, 32, 64, 128, 256, 512)
_PARTITIONS = ((0, 0), (1, 0), (256, 256), (128, 128), (64, 64), (32, 32), (1, 128), (128, 1), (16, 16),
               (1, 64), (1, 32), (32, 1), (1, 16))  # fmt: skip
"""Lines x columns of blocks, 0: all; coarse ones first."""
_ELEMENTS_A_CELL = 8
_MOST_LEFT = 0.2
"""Of the error beyond rounding's that factors of the stored blocks leave: what those of the right ones may leave."""


def other_sizes(evidence: Evidence) -> Iterator[Trial]:
    """The stored numbers as those of blocks of other sizes."""
    quantised = evidence.quantised
    scale = quantised.grid_scale if quantised else None
    if quantised is None or scale is None or scale.layout != "block" or len(quantised.shape) != 2:
        return
    assert scale.block is not None
    grid = evidence.grids[scale.name]
    others = evidence.factors_under({scale.name: np.ones_like(grid)})
    for lines, columns in _candidates(quantised, scale, grid):
        rows = np.minimum(evidence.lines // lines, grid.shape[0] - 1)
        spread = grid[rows][:, np.minimum(np.arange(evidence.length) // columns, grid.shape[1] - 1)]
        wrong = int(np.count_nonzero(spread[:, 0] != evidence.spread_grid(scale, grid)[:, 0]))
        of = f"; {wrong:,} of {len(rows):,} lines that were looked at get the scale of another block" if wrong else ""
        words = (
            f"{escape(scale.name)} is of blocks of {lines} x {columns}, read as of {scale.block[0]} x {scale.block[1]}"
            f"{of}"
        )
        # Numbers that belong to no block are hardly written.
        rank = 0 if (-(-quantised.lines // lines), -(-quantised.length // columns)) == grid.shape else 2
        found = try_reading(evidence, Reading("block_size", words, others * spread, rank=rank))
        if found is not None:
            yield found


def finer_or_coarser(evidence: Evidence) -> Iterator[Trial]:
    """Whether factors of blocks of another size, fitted, leave rounding alone: then those are the codes' blocks."""
    quantised = evidence.quantised
    if quantised is None or not quantised.scales:
        return
    by_stored = _left(evidence, evidence.cells)
    most = evidence.rounding_error + _MOST_LEFT * (by_stored - evidence.rounding_error)
    if by_stored < (1 + _MOST_LEFT) * evidence.rounding_error:
        return
    for lines, columns in _PARTITIONS:
        cells = evidence.cut(lines, columns)
        if cells.n * _ELEMENTS_A_CELL > evidence.n or cells.n <= 1:
            continue
        sum_c2 = cells.dot(evidence.codes, evidence.codes)
        fitted = np.nan_to_num(ratio(cells.dot(evidence.x, evidence.codes), sum_c2))
        if _left(evidence, cells) > most or not _differ(fitted, evidence):
            continue
        words = (
            f"the codes were made with one scale for each {_size(lines, columns)}, the stored ones are one for "
            f"{_stored_size(evidence)}: inside of it the gain changes, and no stored number gives that back"
        )
        found = try_reading(evidence, Reading("block_size", words, cells.spread(fitted), freedom=cells.n))
        if found is not None:
            yield found
            return


def _candidates(quantised: Quantised, scale: Scale, grid: Float32Array) -> list[tuple[int, int]]:
    assert scale.block is not None
    lines, columns = scale.block
    other_lines = _fitting(quantised.lines, grid.shape[0])
    other_columns = _fitting(quantised.length, grid.shape[1])
    pairs = [(other, columns) for other in other_lines] + [(lines, other) for other in other_columns]
    pairs += [(size, size) for size in _SIZES if size in other_lines and size in other_columns]
    return [pair for pair in dict.fromkeys(pairs) if pair != (lines, columns)]


def _fitting(n: int, numbers: int) -> list[int]:
    """Sizes of blocks that need all these numbers, or that are usual and need fewer; the usual ones first."""
    if numbers < 2:
        return []
    usual = [size for size in _SIZES if -(-n // size) <= numbers]
    smallest, largest = -(-n // numbers), (n - 1) // (numbers - 1)
    even = [size for size in range(smallest, largest + 1) if size % 16 == 0 or size == smallest]
    return list(dict.fromkeys([*usual[:3], *even[:8]]))


def _left(evidence: Evidence, cells: Cells) -> float:
    """Squared error that one fitted factor a cell leaves, what fitting itself takes away put back."""
    sum_xc, sum_c2 = cells.dot(evidence.x, evidence.codes), cells.dot(evidence.codes, evidence.codes)
    left = evidence.sum_x2 - float(np.nansum(ratio(sum_xc * sum_xc, sum_c2)))
    return left * evidence.n / max(1, evidence.n - cells.n)


def _differ(fitted: Float64Array, evidence: Evidence) -> bool:
    """Whether factors differ by more than rounding makes them."""
    low, high = np.quantile(fitted[fitted > 0], [0.1, 0.9]) if (fitted > 0).any() else (1.0, 1.0)
    return bool(high > low * (1 + 2 * (evidence.fmt.max_gain_error if evidence.fmt else 0)))


def _size(lines: int, columns: int) -> str:
    if not lines:
        return "column" if columns else "matrix"
    return f"block of {lines} x {columns}" if columns else "line"


def _stored_size(evidence: Evidence) -> str:
    scale = evidence.quantised.grid_scale if evidence.quantised else None
    if scale is not None and scale.layout == "block" and scale.block is not None:
        return f"each block of {scale.block[0]} x {scale.block[1]}"
    return each_cell(evidence)
