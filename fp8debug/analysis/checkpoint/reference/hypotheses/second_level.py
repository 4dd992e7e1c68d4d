"""The scale of the tensor that two levels need, where there is none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sample import MOST_ELEMENTS
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import number, too_large
from fp8debug.errors import escape

_LARGEST_PRODUCTS = (448.0 * 6, 256.0 * 6)
"""Largest scale of a block times E2M1's largest value; with blocks that choose between 4 and 6, 256."""
_NEAR = 0.02


def missing(evidence: Evidence) -> Iterator[Trial]:
    """The largest value of the reference over what two levels can hold, as the scale that is not there."""
    quantised = evidence.quantised
    scale = quantised.grid_scale if quantised else None
    if quantised is None or scale is None or scale.encoding != "E4M3" or len(quantised.scales) > 1:
        return
    best = evidence.best_factor
    if best <= 0:
        return
    amax = _amax(evidence)
    for product in _LARGEST_PRODUCTS:
        second = amax / product
        if abs(second / best - 1) > _NEAR:
            continue
        words = (
            f"the scale of the whole tensor is missing: {escape(scale.name)} holds those of blocks alone; the "
            f"reference's largest value {number(amax)} / {number(product)} = {number(second)} puts it right: "
            f"{too_large(1 / second)}"
        )
        found = try_reading(evidence, Reading("missing_second_level", words, evidence.factors * np.float32(second)))
        if found is not None:
            yield found


def _amax(evidence: Evidence) -> float:
    if evidence.is_whole:
        return float(np.abs(evidence.x).max(initial=0))
    pair = evidence.pair
    step = max(1, MOST_ELEMENTS // max(1, pair.length))
    bands = (pair.reference_lines.values(first, min(pair.lines, first + step)) for first in range(0, pair.lines, step))
    return max(float(np.abs(finite(band)).max(initial=0)) for band in bands)
