"""What a comparison comes to, in plain sentences: the first one is the verdict."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.compare.curve import Curve
from fp8debug.analysis.compare.differences import Comparability
from fp8debug.analysis.compare.gap import Gap
from fp8debug.analysis.compare.scores import Scores
from fp8debug.analysis.compare.sentences import (
    comparability_sentences,
    curve_sentences,
    gap_sentence,
    gap_text,
    score_sentences,
    tensor_sentences,
    too_early,
)
from fp8debug.analysis.compare.signals import Signals
from fp8debug.analysis.compare.triage import Triage
from fp8debug.errors import some


@dataclass(frozen=True, slots=True)
class Verdict:
    """The sentences, in the order in which they matter."""

    word: str
    """not_comparable | divergence | spike | gap | transient | lower_benchmarks | none | not_enough_evidence"""
    headline: str
    sentences: tuple[str, ...]


def verdict_of(run: Curve, alike: Comparability, gap: Gap, signals: Signals, found: Triage, scores: Scores) -> Verdict:
    """Put a comparison in words."""
    word = _word(alike, gap, signals)
    sentences = [
        *comparability_sentences(alike),
        gap_sentence(gap, run),
        *curve_sentences(signals),
        *tensor_sentences(found),
        *score_sentences(scores, signals),
    ]
    return Verdict(word, _headline(word, alike, gap, signals, scores, run), tuple(sentences))


def _word(alike: Comparability, gap: Gap, signals: Signals) -> str:
    if alike.level == "not_comparable":
        return "not_comparable"
    for kind in ("divergence", "spike", "gap"):
        if kind in signals.kinds:
            return kind
    if signals.ends_badly is not None and signals.baseline_ends_badly is not None:
        return "not_enough_evidence"
    if "lower_benchmarks" in signals.kinds:
        return "lower_benchmarks"
    if gap.kind == "transient" and (gap.early_low or 0.0) > gap.usual_limit:
        return "transient"
    return "not_enough_evidence" if gap.kind == "unknown" else "none"


def _headline(word: str, alike: Comparability, gap: Gap, signals: Signals, scores: Scores, run: Curve) -> str:
    match word:
        case "not_comparable":
            names = some([difference.name for difference in alike.unintended])
            return f"Not comparable: {len(alike.unintended)} differences beside the precision ({names})."
        case "divergence":
            start = " from the first steps on" if signals.is_from_start else ""
            return f"The run diverges{start}: {signals.ends_badly or 'its loss gap keeps growing'}."
        case "spike":
            n, first = signals.n_events, min(spike.first_step for spike in signals.own)
            spikes = f"One spike, at step {first}," if n == 1 else f"{n} spikes, the first at step {first},"
            return f"{spikes} that the baseline does not have; the run recovers."
        case "gap":
            so_far = " so far" if too_early(gap, run) else ""
            since = "" if gap.is_from_start else f", since about step {gap.onset_step}"
            return f"Persistent gap{so_far} of {gap_text(gap)}{since}: investigate."
        case "transient":
            return "Early transient, shrinking: no fault shows in the loss."
        case "lower_benchmarks":
            lag = "All benchmarks lag" if scores.verdict == "all_lag" else "Only some tasks lag"
            return f"{lag} although the loss is normal."
        case "none":
            return "No fault shows in the loss."
        case _ if signals.baseline_ends_badly is not None and signals.ends_badly is not None:
            return "Both runs end badly: nothing shows that the precision is the cause."
        case _:
            return "Not enough evidence: too few steps have a finite loss in both curves."
