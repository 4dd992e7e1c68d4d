"""Lines (output channels) that stand in another order: halves exchanged, heads permuted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Rows
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sample import MOST_ELEMENTS
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite, square_sum
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Trial
from fp8debug.formats import Float32Array
from fp8debug.metrics import Float64Array

_PROBES = 12
_FEWEST_COLUMNS = 32
_LEAST_COSINE = 0.97
_MUCH_MORE = 2.0
_MOST_READ = 1 << 26
"""Elements of the reference that are searched."""


def other_order(evidence: Evidence) -> Iterator[Trial]:
    """Some of our lines, looked for among all of the reference's."""
    pair = evidence.pair
    if evidence.length < _FEWEST_COLUMNS or pair.lines < 2 or pair.lines * pair.length > _MOST_READ:
        return
    power = np.einsum("ij,ij->i", evidence.values, evidence.values, dtype=np.float64)
    filled = np.flatnonzero((power > 0) & np.isfinite(power))
    if filled.size < 2:
        return
    chosen = filled[np.linspace(0, filled.size - 1, min(_PROBES, filled.size)).astype(np.intp)]
    at, cosine, theirs = _found(evidence, chosen)
    lines = evidence.lines[chosen]
    moved = (cosine > _LEAST_COSINE) & (at != lines)
    if np.mean(cosine > _LEAST_COSINE) < 0.9 or moved.mean() < 0.25:
        return
    ours = evidence.values[chosen]
    before = square_sum(evidence.x[chosen] - ours)
    left = square_sum(theirs - ours)
    fitted = square_sum(theirs - ours * _best_factors(theirs, ours))
    explained = float(np.clip(1 - fitted / before, 0, 1)) if before else 0.0
    if explained < 0.9:
        return
    shape, by = pair.tensor.shape, np.unique((at - lines) % pair.lines)
    words = f"lines stand in another order: line {lines[moved][0]:,} is the reference's line {at[moved][0]:,}"
    if by.size == 1:
        words = f"lines are shifted by {int(by[0]):,}: line 0 is the reference's line {int(by[0]):,}"
    if len(shape) > 2 and not np.any(by % shape[-2]):
        ours, theirs = lines[moved][0] // shape[-2], at[moved][0] // shape[-2]
        words = f"matrices of the stack stand in another order: number {ours} is the reference's number {theirs}"
    if left > _MUCH_MORE * fitted:
        words += ", and their scales did not move with them"
    yield Trial(
        Hypothesis("line_order", f"{words} ({int(moved.sum())} of {len(chosen)} lines looked for)", explained, None),
        0,
        0.0,
    )


def _best_factors(theirs: Float32Array, ours: Float32Array) -> Float32Array:
    """(n, 1): what each line is to be multiplied with."""
    products = np.einsum("ij,ij->i", theirs, ours, dtype=np.float64)
    found: Float32Array = (products / np.einsum("ij,ij->i", ours, ours, dtype=np.float64)).astype(np.float32)
    return found[:, None]


def _found(evidence: Evidence, chosen: Rows) -> tuple[Rows, Float64Array, Float32Array]:
    """For each chosen line the most alike of the reference: its number, the cosine, its values."""
    pair, ours = evidence.pair, evidence.values[chosen]
    scaled = ours / np.sqrt(np.einsum("ij,ij->i", ours, ours, dtype=np.float64))[:, None]
    at, most = np.zeros(len(chosen), np.intp), np.full(len(chosen), -1.0)
    step = max(1, MOST_ELEMENTS // max(1, pair.length))
    for first in range(0, pair.lines, step):
        band = finite(pair.reference_lines.values(first, min(pair.lines, first + step)))
        size = np.sqrt(np.einsum("ij,ij->i", band, band, dtype=np.float64))
        with np.errstate(all="ignore"):
            cosines = np.nan_to_num(np.einsum("ij,kj->ki", band, scaled.astype(np.float32)) / size)
        best = cosines.argmax(axis=1)
        better = cosines[np.arange(len(chosen)), best] > most
        most = np.where(better, cosines[np.arange(len(chosen)), best], most)
        at = np.where(better, best + first, at)
    theirs = np.concatenate([finite(pair.reference_lines.values(int(line), int(line) + 1)) for line in at])
    return at, most, theirs
