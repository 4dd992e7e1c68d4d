"""All hypotheses tried on a pair, and ranked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.hypotheses import columns
from fp8debug.analysis.checkpoint.reference.hypotheses.block_size import finer_or_coarser, other_sizes
from fp8debug.analysis.checkpoint.reference.hypotheses.clipping import clipped
from fp8debug.analysis.checkpoint.reference.hypotheses.element_format import other_formats, other_orders
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.factors import one_factor
from fp8debug.analysis.checkpoint.reference.hypotheses.few_cells import few_are_off
from fp8debug.analysis.checkpoint.reference.hypotheses.fitted import fitted_factors, nothing_known
from fp8debug.analysis.checkpoint.reference.hypotheses.gathering import gather
from fp8debug.analysis.checkpoint.reference.hypotheses.grid_order import other_places
from fp8debug.analysis.checkpoint.reference.hypotheses.line_order import other_order
from fp8debug.analysis.checkpoint.reference.hypotheses.no_scale import without_scale
from fp8debug.analysis.checkpoint.reference.hypotheses.own_scales import became_of_scales
from fp8debug.analysis.checkpoint.reference.hypotheses.parts import joined_parts
from fp8debug.analysis.checkpoint.reference.hypotheses.plain import of_plain, one_added
from fp8debug.analysis.checkpoint.reference.hypotheses.rotary import rotated
from fp8debug.analysis.checkpoint.reference.hypotheses.rounding import other_rounding
from fp8debug.analysis.checkpoint.reference.hypotheses.scale_reading import bytes_as_other_numbers, used_wrongly
from fp8debug.analysis.checkpoint.reference.hypotheses.second_level import missing
from fp8debug.analysis.checkpoint.reference.hypotheses.second_rounding import rounded_before, rounded_once
from fp8debug.analysis.checkpoint.reference.hypotheses.siblings import scales_of_others
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Trial
from fp8debug.analysis.checkpoint.reference.hypotheses.zeroed import zeroed_part
from fp8debug.analysis.checkpoint.reference.pair import Pair

Family = Callable[[Evidence], Iterable[Trial]]

FAMILIES: tuple[Family, ...] = (
    other_formats, other_orders, bytes_as_other_numbers, used_wrongly, missing, one_factor, other_places, other_sizes,
    scales_of_others, zeroed_part, became_of_scales, few_are_off, clipped, other_rounding, rounded_before, rounded_once,
    joined_parts, columns.folded_factors, finer_or_coarser, other_order, columns.other_order, rotated, of_plain,
)  # fmt: skip
"""All families; of two that explain as much with as few numbers fitted, the one of the earlier family is told first."""
MOST_TOLD = 4
_AS_GOOD = 0.01
_SAME_CODES = 0.97
_MIDWAY = 0.02
_CHANCE = 0.001
_SAME_FACTOR = 1e-3
_LEAST_EXCESS = 0.1
"""Error beyond rounding, over rounding's, below which there is nothing to explain: 0.4 dB."""


def explain(pair: Pair, near: Sequence[int] = ()) -> tuple[Hypothesis, ...]:
    """What makes a tensor differ from its reference, best first; empty: nothing beyond rounding is to be explained.

    A hypothesis without fitted numbers stands before one with some, which says little by itself. Where no cause is
    found, the one entry says so: `unexplained`, or `different_weights` where no factor helps at all.

    Args:
        pair: a tensor and its reference.
        near: lines where the error is, of which a large tensor's sample is to have some.
    """
    if pair.lines == 0 or pair.length == 0:
        return ()
    return explain_evidence(gather(pair, near))


def explain_evidence(evidence: Evidence) -> tuple[Hypothesis, ...]:
    """The same of lines that have been taken already."""
    if evidence.sum_x2 == 0 or not np.isfinite(evidence.sum_x2):
        added = one_added(evidence) if evidence.quantised is None and evidence.sum_x2 == 0 else None
        return () if added is None else (added,)
    is_small = evidence.error <= (1 + _LEAST_EXCESS) * evidence.rounding_error
    # Codes that are those of the reference leave nothing wrong but what is beyond them.
    is_as_rounded = evidence.same_codes(evidence.factors) >= _SAME_CODES and not evidence.n_nonfinite
    families = (few_are_off,) if is_small else (zeroed_part, few_are_off, clipped) if is_as_rounded else FAMILIES
    found = list(without_scale(evidence)) or [trial for family in families for trial in family(evidence)]
    if not found and not is_small and not is_as_rounded:
        found = list(fitted_factors(evidence))
        if not found:
            return (nothing_known(evidence),)
    if not found:
        return ()
    return _different_words(_ranked(found))[:MOST_TOLD]


def _ranked(found: list[Trial]) -> list[Trial]:
    """Those that explain as much as any, best first."""
    best = max(trial.hypothesis.explains for trial in found)
    good = [trial for trial in found if trial.hypothesis.explains >= best - _AS_GOOD]
    # One that gives the stored codes again is right; others that come close are then chance.
    surest = max(good, key=lambda trial: (trial.freedom == 0, trial.same_codes))
    if surest.freedom == 0 and surest.same_codes > _SAME_CODES:
        good = [trial for trial in good if trial.freedom or _is_as_sure(trial, surest)]
    least = min(trial.rank for trial in good)
    good = [trial for trial in good if trial.rank < 2 or least == 2]
    exact = [trial for trial in good if trial.freedom == 0]
    fewest = min(trial.freedom for trial in good)
    return sorted(exact or [trial for trial in good if trial.freedom < 2 * fewest], key=_order)


def _is_as_sure(trial: Trial, surest: Trial) -> bool:
    """Whether it gives as many codes, but for values midway between two, which go by how a writer divides."""
    fewer = surest.same_codes - trial.same_codes
    factor, sure = trial.hypothesis.factor, surest.hypothesis.factor
    if factor is not None and sure is not None and abs(factor / sure - 1) > _SAME_FACTOR:
        return fewer < _CHANCE
    return fewer < _MIDWAY


def _order(trial: Trial) -> tuple[int, int, float]:
    return trial.freedom, trial.rank, -round(trial.hypothesis.explains, 2)


def _different_words(trials: list[Trial]) -> tuple[Hypothesis, ...]:
    told = {trial.hypothesis.message: trial.hypothesis for trial in reversed(trials)}
    return tuple(replace(told[message]) for message in reversed(told))
