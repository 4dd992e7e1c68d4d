"""By how many places the numbers of a grid are shifted, as those of shards joined in another order are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.records import Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Rows
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.errors import escape
from fp8debug.formats import Float32Array
from fp8debug.metrics import Float64Array

_MOST_COMPARED = 256
_NEAR = 0.02
_FEWEST = 4


def shifted(evidence: Evidence, scale: Scale) -> Iterator[tuple[str, Float32Array]]:
    """Sentences and grids for the shift of rows, and that of columns, that fits the fitted factors; one matrix only."""
    grid = evidence.grids[scale.name]
    if len(evidence.pair.tensor.shape) != 2 or len(evidence.grids) > 1:
        return
    with np.errstate(all="ignore"):
        stored, fitted = np.log(grid.astype(np.float64)), np.log(evidence.best_cell_factors)
    if not np.isfinite(stored).all() or fitted.shape[1] != stored.shape[1]:
        return
    rows = evidence.cells.numbers
    columns = np.arange(stored.shape[1])
    for axis, noun, at, ours in ((0, "rows", rows, _mean(fitted, 1)), (1, "columns", columns, _mean(fitted, 0))):
        by = _shift(_mean(stored, 1 - axis), at, ours)
        if by is not None:
            n = stored.shape[axis]
            yield f"the {noun} of {escape(scale.name)} are shifted by {by:,} of {n:,}", np.roll(grid, by, axis)


def _mean(logs: Float64Array, axis: int) -> Float64Array:
    kept = np.isfinite(logs)
    total = np.where(kept, logs, 0).sum(axis=axis)
    means: Float64Array = np.where(kept.any(axis=axis), total / np.maximum(kept.sum(axis=axis), 1), np.nan)
    return means


def _shift(stored: Float64Array, at: Rows, fitted: Float64Array) -> int | None:
    """By how much `stored` has to be rolled to be `fitted` at those places; None: no shift, or one by one, fits."""
    n = len(stored)
    told = np.flatnonzero(np.isfinite(fitted))
    if n < _FEWEST or told.size < _FEWEST:
        return None
    told = told[:: max(1, told.size // _MOST_COMPARED)]
    by = np.arange(n)
    apart = np.median(np.abs(stored[(at[told] - by[:, None]) % n] - fitted[told]), axis=1)
    best = int(np.argmin(apart))
    is_likely = apart[best] < _NEAR and best not in (0, 1, n - 1) and apart[0] > 2 * apart[best] + _NEAR
    return best if is_likely else None
