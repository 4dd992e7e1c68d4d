"""What is said where no cause is known: the factor that fits, or that none does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.siblings import copied_from
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import square_sum
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, fitted_share, try_reading
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import (
    OF_OTHER_WEIGHTS,
    cell_noun,
    each_cell,
    gain_range,
    number,
    too_large,
)
from fp8debug.errors import escape

_OTHER_WEIGHTS_COSINE = 0.98
"""Below it, no rounding to 8 bits accounts for what no factor takes away."""
_ELEMENTS_A_CELL = 16
_RIGHT_GAIN = 0.01
_MOST_OF_IT = 0.8


def fitted_factors(evidence: Evidence) -> Iterator[Trial]:
    """One factor that puts everything right without being that of a known mistake; else one for each block."""
    best = evidence.best_factor
    if best > 0 and np.isfinite(best):
        words = f"{too_large(1 / best)}: no known mistake has this factor{_copied(evidence) or f'; {OF_OTHER_WEIGHTS}'}"
        found = try_reading(evidence, Reading("stale", words, evidence.factors * np.float32(best), freedom=1))
        if found is not None:
            yield found
            return
    cells = evidence.cells
    if cells.n < 2 or cells.n * _ELEMENTS_A_CELL > evidence.n:
        return
    low, high = gain_range(evidence)
    words = (
        f"each {cell_noun(evidence, 1)} is right but for a factor of its own, {number(low)} to {number(high)}: the "
        f"scales belong to other weights or were changed after the codes were made, by no known rule{_copied(evidence)}"
    )
    factors = cells.spread(np.nan_to_num(evidence.best_cell_factors))
    found = try_reading(
        evidence, Reading("copied_scale" if _copied(evidence) else "other_scales", words, factors, freedom=cells.n)
    )
    if found is not None:
        yield found


def _copied(evidence: Evidence) -> str:
    """Whose numbers the scale of the codes holds as well; empty: nobody's."""
    scale = evidence.quantised.grid_scale if evidence.quantised else None
    other = None if scale is None else copied_from(evidence, scale)
    return "" if scale is None or other is None else f"; {escape(scale.name)} holds the same as {escape(other)}"


def nothing_known(evidence: Evidence) -> Hypothesis:
    """That no cause was found, with what the best factor does."""
    q2, best, explained = square_sum(evidence.values), evidence.best_factor, fitted_share(evidence)
    cosine = best * np.sqrt(q2 / evidence.sum_x2)
    if q2 == 0:
        return Hypothesis("all_zero", "all values are zero, or not finite, those of the reference are not", 0.0, None)
    if _cosine_of_cells(evidence) < _other_weights_cosine(evidence):
        words = f"different weights: cosine {cosine:.2f}, no factor explains it"
        return Hypothesis("different_weights", words, explained, None)
    if abs(best - 1) < _RIGHT_GAIN and _error_of_cells(evidence) > _MOST_OF_IT * evidence.error:
        ours, rounding = (10 * np.log10(evidence.sum_x2 / error) for error in (evidence.error, evidence.rounding_error))
        words = (
            f"the scales are right, the values are others: {ours:.1f} dB where rounding to the nearest leaves "
            f"{rounding:.1f} dB, the best factor is {best:.3f} and a factor for {each_cell(evidence)} does no better: "
            "weights of another step, or a rounding that was fitted to data, as GPTQ's is"
        )
        return Hypothesis("other_values", words, explained, None)
    factor = f"{number(1 / best)} explains {explained:.0%}" if best > 0 else "explains nothing"
    return Hypothesis("unexplained", f"no known cause; the best single factor {factor} of the error", explained, None)


def _cosine_of_cells(evidence: Evidence) -> float:
    """Cosine after each block got the factor that fits it best."""
    return float(np.sqrt(max(0.0, 1 - _error_of_cells(evidence) / evidence.sum_x2)))


def _error_of_cells(evidence: Evidence) -> float:
    """Squared error that is left after that; of cells with few elements, after the one factor that fits best."""
    cells = evidence.cells
    if cells.n * _ELEMENTS_A_CELL > evidence.n:
        return evidence.fitted_error
    xc, c2 = cells.dot(evidence.x, evidence.codes), cells.dot(evidence.codes, evidence.codes)
    return max(0.0, evidence.sum_x2 - float(np.nansum(ratio(xc * xc, c2))))


def _other_weights_cosine(evidence: Evidence) -> float:
    """The cosine that rounding leaves, and some more."""
    rounding = 1 - evidence.rounding_error / evidence.sum_x2
    return min(_OTHER_WEIGHTS_COSINE, 1 - 4 * (1 - rounding))
