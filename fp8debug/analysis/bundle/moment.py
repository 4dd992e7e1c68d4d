"""What a bundle is about: the step at which a run first went wrong, and the operands that it is told by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.diagnosis import Finding
from fp8debug.analysis.judged import Judged, judged, judged_operands
from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import suspects
from fp8debug.errors import some

_SERIOUS = ("error", "warning")
_N_NAMED = 8

_COUNTS = "select count(*), count(*) filter (sampled) from stored.tensors"
_BAD_LOSS = "select min(step) from stored.steps where not isfinite(loss) or not isfinite(grad_norm)"
_LAST = "select max(step) from stored.tensors where sampled"


@dataclass(frozen=True, slots=True)
class Moment:
    """The first anomaly, or what stands in for it."""

    step: int | None
    """None: no step was recorded in which anything could be seen."""
    why: str
    """What happened at that step."""
    operands: tuple[tuple[str, str | None], ...]
    """(layer, tensor) that findings and candidates are about, worst first; tensor None: all of the layer."""
    verdict: str
    """One sentence: what was found, or why nothing can be said."""


def moment_of(run: Run, findings: Sequence[Finding]) -> Moment:
    """Where to look in a run."""
    n_records, n_sampled = run.sql(_COUNTS).fetchall()[0]
    if not n_sampled:
        return Moment(
            _bad_loss(run), "first loss or gradient norm that is not finite", (), _insufficient(run, n_records)
        )
    found, watch = suspects(run)
    candidates = [(suspect.layer, suspect.tensor) for suspect in found]
    is_judged = _is_judged(judged(run, judged_operands(run), found, watch), run.thresholds["min_steps_short"])
    operands = tuple(dict.fromkeys([*_places(findings, _SERIOUS), *candidates])) or _places(findings, ("watch",))
    verdict = _verdict(findings, candidates, is_judged=is_judged)
    stepped = [f for f in findings if f.first_step is not None and f.severity in (*_SERIOUS, "watch")]
    if stepped:
        return Moment(stepped[0].first_step, f"first step of the finding {stepped[0].rule}", operands, verdict)
    bad = _bad_loss(run)
    if bad is not None:
        return Moment(bad, "first loss or gradient norm that is not finite", operands, verdict)
    return Moment(run.sql(_LAST).fetchall()[0][0], "last sampled step: no finding has a step", operands, verdict)


def _places(findings: Sequence[Finding], severities: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    places = (place for finding in findings if finding.severity in severities for place in finding.places)
    return tuple(dict.fromkeys((place.layer, place.tensor) for place in places if place.layer is not None))


def _is_judged(evidence: Sequence[Judged], n_steps: float) -> bool:
    """Whether enough steps of any operand could be judged."""
    return any(entry.n_operands and entry.n_steps >= n_steps for entry in evidence)


def _verdict(findings: Sequence[Finding], candidates: Sequence[tuple[str, str]], *, is_judged: bool) -> str:
    serious = [f for f in findings if f.severity in _SERIOUS]
    if serious:
        n_more = len(serious) - 1
        return _named(serious[0]) + (f" ({n_more} more finding{'s' if n_more > 1 else ''})" if n_more else "")
    if candidates:
        named = some([f"{layer} {tensor}" for layer, tensor in dict.fromkeys(candidates)])
        return f"no error or warning; operands that would suffer in FP8: {named}"
    if not is_judged:
        return "insufficient evidence: nothing was found, in too few sampled steps to judge; sample more of them"
    return "no finding above watch: what was recorded shows nothing wrong"


def _named(finding: Finding) -> str:
    """What is wrong, with the place where it is worst."""
    worst = finding.worst
    where = " ".join(word for word in (worst.layer, worst.tensor, worst.gemm) if word is not None)
    others = f" and {len(finding.places) - 1} more" if len(finding.places) > 1 and where else ""
    return f"{where}{others}: {finding.message}" if where else finding.message


def _insufficient(run: Run, n_records: int) -> str:
    """Nothing was looked into: no layer may be named as the culprit."""
    had = "only amax and counts of the tensors were recorded" if n_records else "no tensor was recorded"
    names = [layer.info.name for layer in run.layers if layer.info.kind != "attention"]
    which = f"these layers: {', '.join(names[:_N_NAMED])}" if names else "the layers of the model"
    more = f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
    return f"insufficient evidence: {had}; enable capture for {which}{more}"


def _bad_loss(run: Run) -> int | None:
    step: int | None = run.sql(_BAD_LOSS).fetchall()[0][0]
    return step
