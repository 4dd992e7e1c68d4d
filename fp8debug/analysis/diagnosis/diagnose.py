"""Ask all rules, leave out what follows from something else, and tell one cause once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fp8debug.analysis.diagnosis.finding import SEVERITIES, Finding
from fp8debug.analysis.diagnosis.hits import Hit, hits_of
from fp8debug.analysis.diagnosis.rule import Rule
from fp8debug.analysis.diagnosis.rulebook import RuleBook, load_rules, order_of
from fp8debug.analysis.run import Run


def diagnose(run: Run, rules: RuleBook | None = None) -> tuple[Finding, ...]:
    """What is wrong in a run, worst first.

    Args:
        run: an open run; of one that was opened at a part, that part.
        rules: None: those shipped.

    Raises:
        UsageError: a rule of the user's whose query cannot be run.
    """
    hits = [hit for rule in rules or load_rules() for hit in hits_of(run, rule)]
    return _findings(_unexplained(hits))


def _unexplained(hits: Sequence[Hit]) -> list[Hit]:
    """Without those that another rule's hit at the same operand explains."""
    explained: dict[tuple[str, str | None, str | None], list[Rule]] = {}
    for hit in hits:
        for name in hit.rule.explains:
            explained.setdefault((name, hit.place.layer, hit.place.tensor), []).append(hit.rule)
    return [hit for hit in hits if not any(_yields(hit.rule, explained.get(key, ())) for key in _keys(hit))]


def _yields(rule: Rule, to: Iterable[Rule]) -> bool:
    """Whether `rule` is left out for one of the others; of two that explain each other the first stays."""
    return any(other.name not in rule.explains or order_of(other) < order_of(rule) for other in to)


def _keys(hit: Hit) -> Iterable[tuple[str, str | None, str | None]]:
    """By what a hit may be explained: something at its operand, in its layer, or in the run as a whole."""
    name, layer, tensor = hit.rule.name, hit.place.layer, hit.place.tensor
    return (name, layer, tensor), (name, layer, None), (name, None, None)


def _findings(hits: Iterable[Hit]) -> tuple[Finding, ...]:
    groups: dict[tuple[str, str, str, str], list[Hit]] = {}
    for hit in hits:
        groups.setdefault((hit.rule.name, hit.severity, hit.confidence, hit.cause), []).append(hit)
    found = [(sorted(group, key=_badness)) for group in groups.values()]
    found.sort(key=lambda group: (SEVERITIES.index(group[0].severity), group[0].rule.priority, _badness(group[0])))
    return tuple(_finding(group) for group in found)


def _finding(group: Sequence[Hit]) -> Finding:
    """One finding of hits that are ordered worst first."""
    worst = group[0]
    return Finding(
        rule=worst.rule.name,
        severity=worst.severity,
        confidence=worst.confidence,
        message=worst.place.message,
        advice=worst.rule.advice,
        needs=worst.needs,
        evidence=worst.evidence,
        places=tuple(hit.place for hit in group),
        page=worst.rule.page,
        problems=worst.rule.problems,
    )


def _badness(hit: Hit) -> tuple[float, int, str, str]:
    """Sort key: most dB lost first, then the earliest."""
    place = hit.place
    lost = -1.0 if place.db_lost is None or math.isnan(place.db_lost) else place.db_lost
    return -lost, -1 if place.first_step is None else place.first_step, place.layer or "", place.tensor or ""
