"""Findings about what a run computed with: those under recipes that it only measured are left out."""

from __future__ import annotations

from fp8debug.analysis.diagnosis import Finding, RuleBook, diagnose
from fp8debug.analysis.diagnosis.finding import Place
from fp8debug.analysis.run import Run
from fp8debug.analysis.verification.record import Exposed
from fp8debug.gemms import READS
from fp8debug.plans import BF16, Plan
from fp8debug.recipes import parse_recipe

_SEVERITIES = ("error", "warning")


def exposed(run: Run, used: Plan, rules: RuleBook | None = None) -> tuple[Exposed, ...]:
    """Operands of errors and warnings, worst first, once a rule.

    Args:
        run: an open run.
        used: what it computed with; of a run in BF16, a plan whose recipe is that.
        rules: None: those shipped.
    """
    places = [(finding, place) for finding in diagnose(run, rules) if _counts(finding) for place in finding.places]
    found = [
        Exposed(place.layer, place.tensor, finding.rule)
        for finding, place in places
        if place.layer is not None and _is_used(place, used)
    ]
    return tuple(dict.fromkeys(found))


def _counts(finding: Finding) -> bool:
    return finding.severity in _SEVERITIES and finding.confidence != "not_enough_evidence"


def _is_used(place: Place, used: Plan) -> bool:
    if place.recipe is None:
        return True
    assert place.layer is not None
    reads = [(gemm, tensor) for gemm, tensor in READS if place.tensor in (None, tensor) and place.gemm in (None, gemm)]
    recipes = {used.change_of(place.layer, tensor, gemm) for gemm, tensor in reads} - {BF16}
    return place.recipe in {parse_recipe(recipe).text for recipe in recipes}
