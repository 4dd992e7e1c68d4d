"""The scale of the tensor that two levels need, where there is none or another number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fp8debug.analysis.checkpoint.records import Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sample import MOST_ELEMENTS
from fp8debug.analysis.checkpoint.reference.hypotheses.siblings import copied_from
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import number, too_large
from fp8debug.errors import escape
from fp8debug.formats import Float32Array

_LARGEST_PRODUCTS = (448.0 * 6, 256.0 * 6)
"""Largest scale of a block times E2M1's largest value; with blocks that choose between 4 and 6, 256."""
_NEAR = 0.02


def missing(evidence: Evidence) -> Iterator[Trial]:
    """The largest value of the reference over what two levels can hold, as the scale that is not there or is wrong."""
    quantised = evidence.quantised
    scale = quantised.grid_scale if quantised else None
    if quantised is None or scale is None or scale.encoding != "E4M3":
        return
    stored = [one for one in quantised.scales if one.kind == "tensor"]
    grid = evidence.grids[stored[0].name] if stored else np.ones((1, 1), np.float32)
    best = evidence.best_factor * float(grid.reshape(-1)[0])
    if best <= 0 or grid.size > 1:
        return
    amax = _amax(evidence)
    for product in _LARGEST_PRODUCTS:
        second = amax / product
        if abs(second / best - 1) > _NEAR:
            continue
        factor = float(grid.reshape(-1)[0]) / second
        words = f"{_words(scale, stored, grid, amax, product)}: {too_large(factor)}"
        other = copied_from(evidence, stored[0]) if stored else None
        words += f"; {escape(other)} holds the same number" if other else ""
        name, rank = ("wrong_second_level", 2) if stored else ("missing_second_level", 0)
        found = try_reading(evidence, Reading(name, words, evidence.factors / np.float32(factor), rank=rank))
        if found is not None:
            yield found


def _words(scale: Scale, stored: Sequence[Scale], grid: Float32Array, amax: float, product: float) -> str:
    second = amax / product
    if not stored:
        return (
            f"the scale of the whole tensor is missing: {escape(scale.name)} holds those of blocks alone; the "
            f"reference's largest value {number(amax)} / {number(product)} = {number(second)} puts it right"
        )
    told = float(grid.reshape(-1)[0])
    is_, right = (1 / told, 1 / second) if stored[0].divides else (told, second)
    made = f"{number(product)} / {number(amax)}" if stored[0].divides else f"{number(amax)} / {number(product)}"
    return (
        f"{escape(stored[0].name)} is {number(is_)}, but the codes were made with {number(right)}, which is {made}, "
        "from the reference's largest value"
    )


def _amax(evidence: Evidence) -> float:
    if evidence.is_whole:
        return float(np.abs(evidence.x).max(initial=0))
    pair = evidence.pair
    step = max(1, MOST_ELEMENTS // max(1, pair.length))
    bands = (pair.reference_lines.values(first, min(pair.lines, first + step)) for first in range(0, pair.lines, step))
    return max(float(np.abs(finite(band)).max(initial=0)) for band in bands)
