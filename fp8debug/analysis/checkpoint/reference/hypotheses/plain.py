"""Tensors in high precision, which have no scale: all values multiplied, 1 added to them, in another order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import square_sum
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import too_large

_NEAR_ONE = 0.02
_LARGEST_ROUNDING = 2.0**-8
"""Relative, at most, of BF16; of sums with 1."""
_LEAST_EXPLAINED = 0.9
_FEWEST = 16


def of_plain(evidence: Evidence) -> Iterator[Trial]:
    """1 added to all values, or taken away; a vector in another order; else all of them multiplied."""
    if evidence.quantised is not None:
        return
    known = one_added(evidence) or _in_disorder(evidence)
    if known is not None:
        yield Trial(known, 0, 1.0, rank=2 if known.name == "element_order" else 0)
        return
    best = evidence.best_factor
    if not np.isfinite(best) or best == 0:
        return
    words = (
        f"{too_large(1 / best)}: it has no scale, so its values were multiplied on the way here, or in the reference"
    )
    reading = Reading("plain_factor", words, evidence.factors * np.float32(best), freedom=1)
    found = try_reading(evidence, reading)
    if found is not None:
        yield found


def one_added(evidence: Evidence) -> Hypothesis | None:
    """Whether 1 is added to the values, or taken away: weights of norms that are kept as w or as 1 + w."""
    apart = evidence.values.astype(np.float64) - evidence.x
    by = 1.0 if np.median(apart) > 0 else -1.0
    if abs(float(np.median(apart)) - by) > _NEAR_ONE or evidence.error == 0:
        return None
    explained = 1 - square_sum((apart - by).astype(np.float32)) / evidence.error
    size = np.maximum(1.0, np.maximum(np.abs(evidence.values), np.abs(evidence.x)))
    if explained < _LEAST_EXPLAINED or np.quantile(np.abs(apart - by) / size, 0.99) > _LARGEST_ROUNDING:
        return None
    kept, theirs = ("1 + w", "w") if by > 0 else ("w", "1 + w")
    words = (
        f"all values are {'larger' if by > 0 else 'smaller'} by 1: this is {kept}, the reference {theirs}. Norms are "
        "stored as 1 + w by most models, as w where the model adds the 1 itself (Gemma's): one of the two was converted"
    )
    return Hypothesis("one_added", words, float(explained), None)


def _in_disorder(evidence: Evidence) -> Hypothesis | None:
    """Whether a vector has the right values in another order."""
    if evidence.pair.lines != 1 or evidence.length < _FEWEST:
        return None
    if not np.array_equal(np.sort(evidence.values), np.sort(evidence.x)):
        return None
    moved = np.flatnonzero(evidence.values[0] != evidence.x[0])
    words = f"it holds the right values in another order: {moved.size:,} of {evidence.length:,} stand elsewhere"
    return Hypothesis("element_order", words, 1.0, None)
