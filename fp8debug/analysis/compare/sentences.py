"""The parts of a comparison, each in plain sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from fp8debug.analysis.compare.curve import Curve
from fp8debug.analysis.compare.differences import Comparability
from fp8debug.analysis.compare.gap import Gap
from fp8debug.analysis.compare.scores import Scores
from fp8debug.analysis.compare.signals import Signals
from fp8debug.analysis.compare.spikes import Spike
from fp8debug.analysis.compare.triage import Departure, Triage
from fp8debug.errors import some

SERIES_WORDS = {"loss": "the loss", "grad_norm": "the gradient norm"}
FEW_STEPS = 1000
FEW_TOKENS = 1e9
"""Practice waits for billions of tokens before it takes a gap of the first steps for one that stays."""


def comparability_sentences(alike: Comparability) -> Iterator[str]:
    """Why the losses can or cannot be compared; nothing where they can."""
    match alike.level:
        case "not_comparable":
            yield "With two or more differences no layer is named: repeat one of the runs with the other's settings."
        case "one_difference":
            one = alike.unintended[0]
            yield f"One difference beside the precision: {one.name}. What follows may be its doing."
        case "unknown":
            yield (
                "Whether the runs are comparable is not known: nothing is known of the set-up of at least one of them "
                "(--manifest FILE gives it)."
            )


def gap_sentence(gap: Gap, run: Curve) -> str:
    """What the gap is and where it goes."""
    if not gap.n_matched:
        return "No gap can be measured: the curves have no step in common."
    if gap.absolute is None:
        return f"No gap can be measured: of {gap.n_matched:,} matched steps none has a finite loss in both curves."
    over = f"over the last {gap.n_level:,} of {gap.n_matched:,} matched steps"
    if gap.low is None or gap.high is None:
        return f"Too few matched steps to measure a gap: {gap.absolute:+.3g} {over}, and no more can be said."
    band = f"95 % band {gap.low:+.3g} to {gap.high:+.3g}"
    match gap.kind:
        case "none":
            return f"No measurable gap: {gap_text(gap)} {over}, {band}."
        case "transient":
            return (
                f"The gap shrinks: {gap.early:+.3g} at first, {gap_text(gap)} {over} ({band})."
            )  # fmt: skip
        case "growing":
            since = (
                f" It is beyond what practice accepts since step {gap.onset_step}."
                if gap.onset_step is not None
                else ""
            )
            return f"The gap grows: {gap.early:+.3g} at first, {gap_text(gap)} {over} ({band}).{since}"
    if gap.absolute < 0:
        return f"The run's loss is lower than the baseline's: {gap_text(gap)} {over} ({band})."
    if gap.is_usual and gap.absolute > gap.usual_limit:
        return (
            f"Gap that stays: {gap_text(gap)} {over} ({band}); the noise leaves open whether practice would accept it."
        )
    if gap.is_usual:
        return f"Small gap that stays: {gap_text(gap)} {over} ({band}); practice accepts 0.01, or 0.25 % of the loss."
    return f"The gap stays: {gap_text(gap)} {over} ({band}).{too_early(gap, run)}"


def too_early(gap: Gap, run: Curve) -> str:
    """Why a gap of the first steps may not stay; empty where there were steps enough."""
    if not gap.is_from_start:
        return ""
    tokens = float(run.tokens[run.tokens > 0].sum()) if run.tokens is not None else math.nan
    if tokens < FEW_TOKENS:
        return f" After {tokens:.2g} tokens it may still be a transient of the start."
    if math.isnan(tokens) and gap.n_matched < FEW_STEPS:
        return f" {gap.n_matched:,} steps cannot tell it from a transient of the start that takes longer."
    return ""


def curve_sentences(signals: Signals) -> Iterator[str]:
    """The first anomaly, and a baseline that is none."""
    if signals.first_anomaly is not None:
        yield f"First anomaly: {anomaly_text(signals.first_anomaly)}."
    if signals.baseline_ends_badly is not None:
        yield f"The baseline is no sound one: {signals.baseline_ends_badly}."


def anomaly_text(spike: Spike) -> str:
    """`step 2, the gradient norm is 572, 5.4 times the median of the steps before`."""
    what = f"step {spike.first_step}, {SERIES_WORDS[spike.series]} is {_number(spike.value)}"
    if not math.isfinite(spike.value) or spike.before is None:
        return what
    if spike.series == "loss":
        return f"{what}, {spike.value - spike.before:.3g} above the median of the steps before"
    return f"{what}, {spike.ratio:.1f} times the median of the steps before" if spike.ratio is not None else what


def tensor_sentences(found: Triage) -> Iterator[str]:
    """Which operand moved first, or what to record to know."""
    match found.status:
        case "named":
            first = found.departures[0]
            others = found.n_departed - 1
            more = f", and {others} more after it" if others else ""
            yield f"First to leave its band: {departure_text(first)}{more}."
        case "nothing_left":
            yield (
                f"None of the {found.n_operands} recorded operands left its band from step {found.first_step} to "
                f"{found.step}: not enough evidence to name a layer."
            )
        case "not_recorded":
            layers = some(list(found.capture_layers)) if found.capture_layers else "all its Linear layers"
            yield (
                f"Insufficient evidence to name a layer: no tensor was recorded. Enable capture for {layers}: "
                "`fp8debug attach --trigger nan,spike train.py`."
            )


def departure_text(one: Departure) -> str:
    """`blocks.2.fc2 x at step 17: amax 12.5, usually 3.1`."""
    place = f"{one.layer} {one.tensor} at step {one.step}"
    usual = "" if one.usual is None else f", usually {one.usual:.3g}"
    under = f" under {one.recipe}" if one.recipe else ""
    simulated = " (simulated)" if one.source == "simulated" else ""
    lost = "" if one.value is None else f"{one.value:.1f} dB lost{usual}"
    match one.measure:
        case "nonfinite":
            return f"{place}: NaN or infinite values"
        case "amax":
            return f"{place}: amax {one.value:.3g}{usual}"
        case "scale_gap_bits":
            return f"{place}: scale {one.value:+.1f} bits above the ideal one{usual}{under}{simulated}"
        case "db_lost":
            return f"{place}: {lost}{under}{simulated}"
    return f"{place}: beyond what is healthy at every step looked at{lost and ', '}{lost}{under}{simulated}"


def score_sentences(scores: Scores, signals: Signals) -> Iterator[str]:
    """Which tasks lag, and where to look."""
    if scores.verdict not in ("some_lag", "all_lag"):
        return
    names = some([f"{score.task} ({score.baseline:.4g}, now {score.run:.4g})" for score in scores.lagging])
    lag = (
        "All tasks lag"
        if scores.verdict == "all_lag"
        else f"Only some tasks lag, {len(scores.lagging)} of {len(scores.tasks)}"
    )
    also = " as well as the loss" if {"divergence", "gap"} & set(signals.kinds) else ""
    yield (
        f"{lag}{also}: {names}. Check how the weights are served: `fp8debug verify --inference`, and the checkpoint's "
        "scales and codes."
    )


def gap_text(gap: Gap) -> str:
    """`+0.09 (+3 %)`."""
    relative = "" if gap.relative is None else f" ({100 * gap.relative:+.2g} %)"
    return f"{gap.absolute:+.3g}{relative}" if gap.absolute else "0"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else "infinite" if math.isinf(value) else f"{value:.4g}"
