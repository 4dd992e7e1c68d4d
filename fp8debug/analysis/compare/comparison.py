"""The comparison as a record: one baseline, one entry a run that is held against it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.compare.curve import Curve
from fp8debug.analysis.compare.gap import Gap, gap_of
from fp8debug.analysis.compare.gate import Gate, GateResult, judge
from fp8debug.analysis.compare.sources import Source, read_source


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
    gap: Gap
    gate: GateResult | None


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
    gap = gap_of(baseline, run)
    return Pair(_facts(run), gap, None if gate is None else judge(gate, gap))


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
