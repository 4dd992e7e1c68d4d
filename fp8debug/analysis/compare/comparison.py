"""The comparison as a record: one baseline, one entry a run that is held against it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.compare.curve import Curve
from fp8debug.analysis.compare.differences import Comparability, comparability
from fp8debug.analysis.compare.gap import Gap, gap_of
from fp8debug.analysis.compare.gate import Gate, GateResult, judge
from fp8debug.analysis.compare.scores import Scores, compare_scores
from fp8debug.analysis.compare.signals import Signals, signals_of
from fp8debug.analysis.compare.software import CHECKS, Check
from fp8debug.analysis.compare.sources import Source, read_source
from fp8debug.analysis.compare.triage import Triage, triage
from fp8debug.analysis.compare.verdict import Verdict, verdict_of


@dataclass(frozen=True, slots=True)
class CurveFacts:
    """What was read of one source."""

    name: str
    kind: str
    taken: dict[str, str]
    n_steps: int
    first_step: int
    last_step: int
    n_nonfinite: int
    """Steps with a loss that is NaN or infinite."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """One run against the baseline."""

    run: CurveFacts
    verdict: Verdict
    comparability: Comparability
    gap: Gap
    gate: GateResult | None
    signals: Signals
    triage: Triage
    scores: Scores
    checks: tuple[Check, ...]
    """Software to look at first; only where the run is worse from its first steps."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that a comparison says."""

    baseline: CurveFacts
    pairs: tuple[Pair, ...]


def compare(
    baseline: Source,
    others: Sequence[Source],
    *,
    gate: Gate | None = None,
    manifests: Sequence[str | os.PathLike[str] | None] = (),
) -> Comparison:
    """Hold runs against a baseline, step by step.

    Args:
        baseline: a run directory, a CSV or JSON file of losses, or a curve; usually the run in high precision.
        others: the same, one a run.
        gate: the largest gap of the loss that is accepted.
        manifests: JSON files of names and values about the sources, the baseline's first.

    Raises:
        Fp8DebugError: a source cannot be read.
        UsageError: it holds no loss curve.
    """
    given = [*manifests, *[None] * (1 + len(others) - len(manifests))]
    base, *runs = [read_source(source, manifest) for source, manifest in zip((baseline, *others), given, strict=True)]
    return Comparison(_facts(base), tuple(_pair(base, run, gate) for run in runs))


def _pair(baseline: Curve, run: Curve, gate: Gate | None) -> Pair:
    alike, gap, scores = (
        comparability(baseline, run),
        gap_of(baseline, run),
        compare_scores(baseline.scores, run.scores),
    )
    signals = signals_of(baseline, run, gap, scores)
    found = _triage(run, alike, gap, signals)
    return Pair(
        run=_facts(run),
        verdict=verdict_of(run, alike, gap, signals, found, scores),
        comparability=alike,
        gap=gap,
        gate=None if gate is None else judge(gate, gap, signals.ends_badly),
        signals=signals,
        triage=found,
        scores=scores,
        checks=CHECKS if signals.is_from_start else (),
    )


def _triage(run: Curve, alike: Comparability, gap: Gap, signals: Signals) -> Triage:
    """Look at tensors only where the curves show something, and only when nothing but the precision can explain it."""
    if alike.level == "not_comparable":
        return Triage("not_comparable")
    step = _step_to_explain(run, gap, signals)
    if step is None:
        return Triage("no_anomaly")
    return Triage("not_recorded", step) if run.run_path is None else triage(run.run_path, step, len(run))


def _step_to_explain(run: Curve, gap: Gap, signals: Signals) -> int | None:
    if signals.first_anomaly is not None:
        return signals.first_anomaly.first_step
    if not {"divergence", "gap"} & set(signals.kinds) or gap.onset_step is None:
        return None
    # The smoothed gap says when only to within its window.
    place = int(np.searchsorted(run.steps, gap.onset_step)) + gap.window
    return int(run.steps[min(place, len(run) - 1)])


def _facts(curve: Curve) -> CurveFacts:
    return CurveFacts(
        curve.name,
        curve.kind,
        dict(curve.taken),
        len(curve),
        int(curve.steps[0]),
        int(curve.steps[-1]),
        curve.n_nonfinite,
        tuple(curve.notes),
    )
