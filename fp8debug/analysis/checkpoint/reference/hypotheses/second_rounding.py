"""Weights that had been rounded to few bits: before they were rounded to these codes, or in high precision again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.first_rounding import first_roundings
from fp8debug.analysis.checkpoint.reference.hypotheses.rounding import Between, is_deterministic
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import square_sum
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Trial, fitted_share, tolerance
from fp8debug.formats import fake_quantize

_SAME_CODES = 0.97
_ELEMENTS = 1 << 17
_LEAST_SQNR = 10.0
"""dB: less is left by no rounding that anybody trains or serves with."""


def rounded_before(evidence: Evidence) -> Iterator[Trial]:
    """A first rounding that gives the very codes; else what two roundings leave in general."""
    if evidence.fmt is None or evidence.error > 8 * evidence.rounding_error:
        return
    # A scale that is a little too large gives the codes that a rounding to it would give, but its own error, too.
    if fitted_share(evidence) > 0.5:
        return
    if evidence.same_codes(evidence.factors) >= _SAME_CODES:
        return
    every = max(1, evidence.n // _ELEMENTS)
    factors = np.broadcast_to(evidence.factors, evidence.x.shape)[::every]
    codes, told = evidence.codes[::every], evidence.x[::every] != 0
    for words, before in first_roundings(evidence, every):
        with np.errstate(all="ignore"):
            again = fake_quantize(before / factors, evidence.fmt)
        same = np.count_nonzero((again == codes) & told) / max(1, int(np.count_nonzero(told)))
        if same >= _SAME_CODES:
            error = square_sum((evidence.x - evidence.values)[::every])
            explained = float(np.clip(1 - square_sum((again - codes) * factors) / error, 0, 1))
            message = f"weights were rounded twice: first to {words}, then to these codes{_ratios(evidence)}"
            yield Trial(Hypothesis("second_rounding", message, explained, None), 0, same)
            return
    yield from _in_general(evidence)


def rounded_once(evidence: Evidence) -> Iterator[Trial]:
    """Of values in high precision: whether they are the reference's, rounded to few bits and turned back."""
    if evidence.fmt is not None or evidence.error > evidence.sum_x2 * 10 ** (-_LEAST_SQNR / 10):
        return
    every = max(1, evidence.n // _ELEMENTS)
    ours, told = evidence.values[::every], evidence.x[::every] != 0
    error = square_sum((evidence.x - evidence.values)[::every])
    for words, rounded in first_roundings(evidence, every):
        # Stored as BF16 they are off by up to one part in 256.
        same = np.count_nonzero((np.abs(rounded - ours) <= np.abs(rounded) / 256) & told)
        share = same / max(1, int(np.count_nonzero(told)))
        left = square_sum(rounded - ours)
        if share >= _SAME_CODES and left < 0.1 * error:
            message = f"weights were rounded to {words} and turned back into high precision{_sqnr(evidence)}"
            yield Trial(Hypothesis("rounded_once", message, 1 - left / error, None), 0, share)
            return


def _in_general(evidence: Evidence) -> Iterator[Trial]:
    assert evidence.fmt is not None
    if not 1.5 < evidence.error / evidence.rounding_error < 2.6 or not _gains_are_right(evidence):
        return
    between = Between(evidence)
    deterministic = is_deterministic(between)
    if between.at_neighbours < 0.98 or deterministic is False:
        return
    message = f"it looks as weights do that were rounded twice: gain 1 everywhere{_ratios(evidence)}"
    if deterministic is None:
        message += "; rounded stochastically they would look alike, and no value occurs often enough to tell"
    explained = min(1.0, evidence.rounding_error / (evidence.error - evidence.rounding_error))
    yield Trial(Hypothesis("second_rounding", message, explained, None), 1, 0.0)


def _sqnr(evidence: Evidence) -> str:
    return f" ({10 * np.log10(evidence.sum_x2 / evidence.error):.1f} dB)"


def _ratios(evidence: Evidence) -> str:
    sqnr, healthy = (10 * np.log10(evidence.sum_x2 / error) for error in (evidence.error, evidence.rounding_error))
    return f" ({sqnr:.1f} dB; one rounding leaves {healthy:.1f} dB)"


def _gains_are_right(evidence: Evidence) -> bool:
    cells = evidence.check_cells
    x2 = cells.dot(evidence.x, evidence.x)
    gain = ratio(cells.dot(evidence.x, evidence.values), x2)
    noise = 4 * np.sqrt(evidence.error / evidence.sum_x2 / cells.sum(np.ones_like(evidence.x)))
    told = np.isfinite(gain)
    return bool(np.mean(np.abs(gain - 1)[told] < 2 * tolerance(evidence.fmt) + noise[told]) > 0.9)
