"""Some blocks or lines that are off, in a tensor that is right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import applied
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import LEAST_EXPLAINED, Trial, explained_by
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import cell_noun, number

_MOST = 0.4
"""Of all cells; more are no exception."""
_FEWEST = 4
_SINGULAR = {"lines": "line", "columns": "column", "matrices": "matrix"}
_NEAR = 1e-3
_AS_ROUNDED = 0.25


def few_are_off(evidence: Evidence) -> Iterator[Trial]:
    """Cells whose gain is off, where it is right in all others."""
    is_stack = len(evidence.pair.tensor.shape) > 2
    cells = evidence.cells if is_stack and evidence.cells.n >= _FEWEST else evidence.check_cells
    if cells.n < _FEWEST:
        return
    gain = ratio(cells.dot(evidence.x, evidence.values), cells.dot(evidence.x, evidence.x))
    near = _NEAR if evidence.fmt is None else evidence.fmt.max_gain_error * 1.1
    off = np.isfinite(gain) & (np.abs(gain - 1) > near)
    n = int(off.sum())
    if n == 0 or n > _MOST * cells.n:
        return
    noun = "lines" if cells is not evidence.cells else cell_noun(evidence)
    worst = np.argmax(np.where(off, np.abs(np.log2(np.maximum(np.abs(gain), 1e-30))), -1))
    row, column = divmod(int(worst), cells.shape[1])
    place = f"{_SINGULAR.get(noun, noun)} {cells.numbers[row] + column}"
    if noun == "blocks":
        place = f"row {cells.numbers[row]}, column {column} of the grid"
    lowest, highest = float(gain[off].min()), float(gain[off].max())
    if n == 1:
        words = f"1 of {cells.n:,} {noun} is off, the others are right: its gain is {number(lowest)}, at {place}"
    else:
        words = (
            f"{n:,} of {cells.n:,} {noun} are off, the others are right: gains {number(lowest)} to {number(highest)}, "
            f"the worst at {place}"
        )
    there = cells.at_cells(evidence.factors)[row, column]
    if not np.isfinite(there) or there == 0:
        words += f", where the scale is {there:g}"
    fitted = ratio(cells.dot(evidence.x, evidence.codes), cells.dot(evidence.codes, evidence.codes))
    factors = np.where(cells.spread(off.astype(np.float32)) > 0, cells.spread(np.nan_to_num(fitted)), evidence.factors)
    factor = float(np.median(gain[off])) if highest - lowest <= near * abs(highest) else None
    before = cells.dot(evidence.x - evidence.values, evidence.x - evidence.values)
    wrong = evidence.x - applied(evidence.codes, factors)
    here, after = float(before[off].sum()), float(cells.dot(wrong, wrong)[off].sum())
    left = evidence.error - here + after
    is_all = left < (1 + _AS_ROUNDED) * evidence.rounding_error or explained_by(evidence, left) >= LEAST_EXPLAINED
    if is_all and after < (1 - LEAST_EXPLAINED) * here:
        yield Trial(Hypothesis("few_blocks", words, float(np.clip(here / evidence.error, 0, 1)), factor), n, 0.0)
