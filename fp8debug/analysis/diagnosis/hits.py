"""What one rule finds: the rows of its query.

Every column is optional. These have a meaning of their own; any other one is there for the sentence and the evidence.

    layer, tensor, gemm, recipe, rank   where
    first_step, last_step               since when, until when
    n_steps, n_observed_steps           steps that hit, of those that could have
    db_lost                             SQNR lost, dB: how bad it is; infinity for what is not finite
    severity, confidence, needs         in place of the rule's own
    cause                               places of the same cause are one finding; NULL: told apart by tensor, GEMM and
                                        name of the layer without its numbers
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from fp8debug.analysis.diagnosis.finding import CONFIDENCES, SEVERITIES, Evidence, Place
from fp8debug.analysis.diagnosis.rule import Rule
from fp8debug.analysis.run import Run
from fp8debug.errors import UsageError

_NUMBERS = re.compile(r"(?<![^.])\d+(?![^.])")
"""Whole parts of a name: `blocks.3.fc2` is of the family `blocks.*.fc2`, and `fc1` is another layer than `fc2`."""
_PARAMETER = re.compile(r"\$(\w+)")


@dataclass(frozen=True, slots=True)
class Hit:
    """One row: a place, and what is known of it."""

    rule: Rule
    severity: str
    confidence: str
    needs: str | None
    cause: str
    place: Place
    evidence: tuple[Evidence, ...]


class _Shown:
    """A cell in a sentence: whatever the format, nothing is `unknown` and a list is its items."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __format__(self, spec: str) -> str:
        if self._value is None:
            return "unknown"
        if isinstance(self._value, (list, tuple)):
            return ", ".join(map(str, self._value))
        return format(self._value, spec)


def hits_of(run: Run, rule: Rule) -> Iterator[Hit]:
    """Ask the run what `rule` asks.

    Raises:
        UsageError: the query of a user's rule cannot be run, or gives a severity that there is not.
    """
    used = set(_PARAMETER.findall(rule.sql))
    try:
        if not all(run.sql(f"select {condition}").fetchall()[0][0] for condition in rule.only_if):
            return
        relation = run.sql(rule.sql, **{name: value for name, value in rule.arguments.items() if name in used})
        names, rows = relation.columns, relation.fetchall()
    except duckdb.Error as error:
        raise UsageError(f"rule {rule.name}: its query cannot be run: {error}") from error
    for row in rows:
        yield _hit(rule, dict(zip(names, row, strict=True)))


def _hit(rule: Rule, cells: dict[str, Any]) -> Hit:
    shown = {name: _Shown(value) for name, value in cells.items()}
    severity = rule.user_severity or cells.get("severity") or rule.severity
    confidence = cells.get("confidence") or rule.confidence
    if severity not in SEVERITIES or confidence not in CONFIDENCES:
        raise UsageError(
            f"rule {rule.name}: its query gives severity {severity!r} and confidence {confidence!r}; expected one of "
            f"{', '.join(SEVERITIES)} and one of {', '.join(CONFIDENCES)}"
        )
    place = Place(
        **{name: cells.get(name) for name in Place.__slots__ if name != "message"},
        message=_sentence(rule, rule.sentence, shown),
    )
    evidence = tuple(
        Evidence(
            title=entry.title,
            value=_sentence(rule, f"{{{entry.column}:{entry.format}}}", shown),
            healthy=_sentence(rule, entry.healthy, shown),
        )
        for entry in rule.evidence
        if entry.column not in cells or cells[entry.column] is not None
    )
    return Hit(rule, severity, confidence, cells.get("needs"), cells.get("cause") or _family(place), place, evidence)


def _sentence(rule: Rule, template: str, shown: Mapping[str, _Shown]) -> str:
    try:
        return template.format_map(shown)
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"rule {rule.name}: {template!r} cannot be filled in: {error!r}") from error


def _family(place: Place) -> str:
    """What places of one cause have in common where the rule does not say."""
    return f"{place.tensor} {place.gemm} {_NUMBERS.sub('*', place.layer or '')}"
