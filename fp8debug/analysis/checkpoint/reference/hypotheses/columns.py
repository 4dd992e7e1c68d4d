"""Columns (input channels) that have factors of their own, or stand in another order, in weights else right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells, Rows, ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import square_sum
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import number
from fp8debug.formats import Float32Array

_FEWEST_LINES = 16
_AS_ROUNDED = 1.5
"""Error, over rounding's, that one factor leaves where columns have none of their own."""
_PROBES = 64
_AT_A_TIME = 512
_MOST_COLUMNS = 8192
"""All are compared with all, on as many lines."""


def folded_factors(evidence: Evidence) -> Iterator[Trial]:
    """One factor for each column, fitted to values and not to codes: scales of blocks stay as they are."""
    if len(evidence.lines) < _FEWEST_LINES or evidence.length < 2:
        return
    if evidence.fitted_error < _AS_ROUNDED * evidence.rounding_error:
        return
    columns = Cells(np.zeros(len(evidence.lines), np.intp), 1, evidence.length)
    fitted = ratio(columns.dot(evidence.x, evidence.values), columns.dot(evidence.values, evidence.values))
    told = fitted[np.isfinite(fitted) & (fitted > 0)]
    if told.size < 2:
        return
    low, high = np.quantile(1 / told, [0.05, 0.95])
    if high < low * (1 + 2 * (evidence.fmt.max_gain_error if evidence.fmt else 0)):
        return
    words = (
        f"each column is right but for a factor of its own, nearly all {number(low)} to {number(high)}: as in weights "
        "that a norm's weights or the factors of smoothing (SmoothQuant, AWQ) were folded into"
    )
    factors = evidence.factors * columns.spread(np.nan_to_num(fitted))
    found = try_reading(evidence, Reading("column_factors", words, factors, freedom=evidence.length))
    if found is not None:
        yield found


def other_order(evidence: Evidence) -> Iterator[Trial]:
    """Whether lines hold the values that they should, in another order that is the same in all."""
    every = max(1, len(evidence.lines) // _PROBES)
    x, q = evidence.x[::every], evidence.values[::every]
    error = square_sum(x - q)
    if len(x) < _FEWEST_LINES or evidence.length < _FEWEST_LINES or error == 0:
        return
    left = square_sum(np.sort(x, axis=1) - np.sort(q, axis=1))
    if left > 0.02 * square_sum(x) or left > 0.02 * error:
        return
    order = _order(x, q)
    if order is None:
        return
    explained = 1 - square_sum(x[:, order] - q) / error
    if explained < 0.9:
        return
    moved = np.flatnonzero(order != np.arange(evidence.length))
    words = (
        f"columns stand in another order: {moved.size:,} of {evidence.length:,}, column {moved[0]:,} is the "
        f"reference's column {order[moved[0]]:,}"
    )
    yield Trial(Hypothesis("column_order", words, float(explained), None), 0, 0.0)


def _order(x: Float32Array, q: Float32Array) -> Rows | None:
    """For each column of q the one of x that is most alike; None: too many columns to compare all with all."""
    if x.shape[1] > _MOST_COLUMNS:
        return None
    order = np.empty(x.shape[1], np.intp)
    size = np.sqrt(np.einsum("ij,ij->j", x, x, dtype=np.float64)).astype(np.float32)
    with np.errstate(all="ignore"):
        scaled = np.nan_to_num(x / size)
    for first in range(0, x.shape[1], _AT_A_TIME):
        # A product by einsum: BLAS would wake threads.
        alike = np.einsum("ij,ik->jk", q[:, first : first + _AT_A_TIME], scaled)
        order[first : first + _AT_A_TIME] = alike.argmax(axis=1)
    return order
