"""What the rules say of an operand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fp8debug.analysis.diagnosis import Finding, Place, RuleBook, diagnose
from fp8debug.analysis.judged import JudgedOperand, judged_operands
from fp8debug.analysis.operand.records import Standing, Told
from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import Suspect, suspects
from fp8debug.gemms import gemms_reading

_WHY = """
select
    count(*),
    coalesce(max(e.n_nonzero) < getvariable('min_nonzero'), true),
    bool_and(per_fmt(e.fmt, 1, 1) is null)
from errors as e
where e.layer = $layer and e.tensor = $tensor and not e.alternate and e.source <> 'payload' and is_judged_pass(e.pass)
"""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the rules say of the layer that a run was opened at."""

    suspects: Mapping[tuple[str, str], Suspect]
    judged: Sequence[JudgedOperand]
    findings: Sequence[Finding]

    @classmethod
    def of(cls, run: Run, rules: RuleBook | None) -> Judgement:
        """Ask all rules."""
        found = {(s.layer, s.tensor): s for both in suspects(run) for s in both}
        return cls(found, judged_operands(run), diagnose(run, rules))

    def standing(self, run: Run, layer: str, tensor: str) -> Standing:
        """What they say of one operand."""
        suspect = self.suspects.get((layer, tensor))
        verdicts = suspect.verdicts if suspect is not None else ()
        under = sorted({each.recipe for each in self.judged if (each.layer, each.tensor) == (layer, tensor)})
        listed = {verdict.recipe for verdict in verdicts}
        level = verdicts[0].level if verdicts else "fine" if under else "not_judged"
        return Standing(
            level=level,
            verdicts=verdicts,
            fine_under=tuple(recipe for recipe in under if recipe not in listed),
            why_not_judged=_why_not(run, layer, tensor) if level == "not_judged" else None,
            told=tuple(self._told(layer, tensor)),
        )

    def _told(self, layer: str, tensor: str) -> Iterator[Told]:
        for finding in self.findings:
            place = next((place for place in finding.places if _is_of(place, layer, tensor)), None)
            if place is not None:
                yield Told(
                    rule=finding.rule,
                    severity=finding.severity,
                    confidence=finding.confidence,
                    message=place.message,
                    recipe=place.recipe,
                    first_step=place.first_step,
                    last_step=place.last_step,
                    advice=finding.advice,
                    page=finding.page,
                )


def _is_of(place: Place, layer: str, tensor: str) -> bool:
    """Whether it is about the operand, a GEMM that reads it, or its layer as a whole."""
    if place.layer != layer:
        return False
    if place.tensor is not None:
        return place.tensor == tensor
    return place.gemm is None or place.gemm in gemms_reading(tensor)


def _why_not(run: Run, layer: str, tensor: str) -> str:
    n_errors, is_small, has_no_limits = run.sql(_WHY, layer=layer, tensor=tensor).fetchall()[0]
    if not n_errors:
        return "no error of a cast under one scale for the whole tensor was recorded of it"
    if has_no_limits:
        return "the rules have no limits for its format"
    if is_small:
        return "no record has enough non-zero values to prove anything"
    return "every record falls into the start of a simulated history"
