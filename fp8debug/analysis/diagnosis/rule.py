"""One rule: read from its file, and changed by what the user says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from fp8debug.analysis.diagnosis.finding import CONFIDENCES, SEVERITIES
from fp8debug.analysis.thresholds import THRESHOLDS
from fp8debug.errors import UsageError, nearest
from fp8debug.reading import parse_toml

_FILE = re.compile(r"-- (?P<meaning>[^\n]+)\n/\*\n(?P<head>.*?)\*/\n(?P<sql>.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A number in the rule's condition: `$<name>` in its SQL."""

    default: float
    meaning: str
    source: str
    """Where the number comes from."""
    unit: str = ""


@dataclass(frozen=True, slots=True)
class EvidenceColumn:
    """A column of the rule's query that is shown as evidence where it is not NULL."""

    column: str
    title: str
    """With the unit."""
    healthy: str
    """What it is in a healthy run; `{column}` stands for another column's value."""
    format: str = ".4g"
    """As in Python's format()."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, as its file has it."""

    name: str
    meaning: str
    """What it finds, in one line."""
    severity: str
    """One of SEVERITIES; the query's column `severity` may say otherwise for a place."""
    sentence: str
    """What is said of a place: `{column}` or `{column:.1f}` are the query's columns."""
    advice: str
    """What to do, in one or two sentences."""
    sql: str
    only_if: tuple[str, ...] = ()
    """Cheap conditions in SQL, asked in this order; at the first that is false there is nothing to look at."""
    why: str = ""
    """For the docs: why it matters, and what causes it."""
    symptom: str = ""
    """For the docs: what a person sees that leads here, such as a loss that rises."""
    confidence: str = "likely"
    """One of CONFIDENCES; the query's column `confidence` may say otherwise."""
    priority: int = 50
    """Order among rules of the same severity, lowest first."""
    explains: tuple[str, ...] = ()
    """Rules whose hits at the same operand follow from this one, and are not told."""
    problems: tuple[str, ...] = ()
    """Kinds of problems (`fp8debug.analysis.problems`) that its findings tell, so that a report need not list them."""
    thresholds: tuple[str, ...] = ()
    """Numbers of `fp8debug.analysis.thresholds` that its views compare with."""
    parameters: Mapping[str, Parameter] | None = None
    evidence: tuple[EvidenceColumn, ...] = ()
    enabled: bool = True
    values: Mapping[str, float] | None = None
    """What the user sets parameters to."""
    user_severity: str | None = None
    """What the user sets the severity to, for every place."""
    file: str = ""
    """The file of a rule of the user's; empty: shipped."""
    changes: tuple[str, ...] = ()
    """What the user changed, such as `severity = "warning"`."""

    @property
    def arguments(self) -> dict[str, float]:
        """The number of each parameter."""
        defaults = {name: parameter.default for name, parameter in (self.parameters or {}).items()}
        return defaults | dict(self.values or {})

    @property
    def page(self) -> str:
        """Where it is explained: its page in the documentation, or the user's file."""
        return self.file or f"docs/rules/{self.name}.md"

    def overridden(self, settings: Mapping[str, object], source: str) -> Rule:
        """The rule with `severity`, `enabled` and parameters as `settings` has them.

        Raises:
            UsageError: an unknown name, or a value of the wrong type.
        """
        values: dict[str, float] = {}
        changes: dict[str, Any] = {}
        for name, value in settings.items():
            where = f"{source}: rules.{self.name}.{name}"
            if name == "severity":
                changes["severity"] = changes["user_severity"] = _one_of(SEVERITIES, value, where)
            elif name == "enabled":
                if not isinstance(value, bool):
                    raise UsageError(f"{where}: got {value!r}; expected true or false")
                changes[name] = value
            elif name in (self.parameters or {}):
                if isinstance(value, bool) or not isinstance(value, (int, float)):
                    raise UsageError(f"{where}: got {value!r}; expected a number such as {self.arguments[name]:g}")
                values[name] = float(value)
            else:
                known = ["severity", "enabled", *(self.parameters or {})]
                near = nearest(name, known) or known
                raise UsageError(f"{where}: unknown; did you mean {' or '.join(near)}?")
        words = (f"{name} = {json.dumps(value)}" for name, value in settings.items())
        return replace(self, **changes, values=values, changes=tuple(words))


def parse_rule(name: str, text: str, source: str) -> Rule:
    """Read a rule file called `name`; `source` names it in messages.

    Raises:
        UsageError: it is not of the form that `fp8debug.analysis.rules` describes.
    """
    match = _FILE.match(text)
    if match is None:
        raise UsageError(
            f"{source}: not a rule file; expected a first line `-- meaning`, then TOML between `/*` and `*/` on lines "
            "of their own, then a SELECT"
        )
    try:
        head = parse_toml(match["head"])
    except ValueError as error:
        raise UsageError(f"{source}: the part between /* and */ is not valid TOML: {error}") from error
    for key, value in head.items():
        if key not in _KEYS:
            raise UsageError(
                f"{source}: unknown key {key!r}; did you mean {' or '.join(nearest(key, _KEYS) or _KEYS)}?"
            )
        if not isinstance(value, _KEYS[key]):
            raise UsageError(f"{source}: {key} is {value!r}; expected {_WORDS[_KEYS[key]]}")
    for key in ("severity", "sentence", "advice"):
        if key not in head:
            raise UsageError(f'{source}: expected `{key} = "..."` between /* and */')
    _one_of(SEVERITIES, head["severity"], f"{source}: severity")
    _one_of(CONFIDENCES, head.get("confidence", "likely"), f"{source}: confidence")
    try:
        head["parameters"] = {key: Parameter(**value) for key, value in head.get("parameters", {}).items()}
        head["evidence"] = tuple(EvidenceColumn(**entry) for entry in head.get("evidence", ()))
    except TypeError as error:
        raise UsageError(f"{source}: a parameter or an evidence column is incomplete: {error}") from error
    for key in ("only_if", "explains", "problems", "thresholds"):
        head[key] = tuple(map(str, head.get(key, ())))
    for number in head["thresholds"]:
        if number not in THRESHOLDS:
            near = nearest(number, THRESHOLDS) or THRESHOLDS
            raise UsageError(f"{source}: unknown threshold {number!r}; did you mean {' or '.join(near)}?")
    return Rule(name=name, meaning=match["meaning"], sql=match["sql"], **head)


_TYPES = {"str": str, "int": int, "bool": bool, "tuple": list, "Mapping": dict}
_NOT_IN_HEAD = ("name", "meaning", "sql", "values", "user_severity", "file", "changes")
_KEYS: dict[str, type] = {
    field.name: _TYPES[str(field.type).partition("[")[0]] for field in fields(Rule) if field.name not in _NOT_IN_HEAD
}
"""What the head of a rule file may have."""
_WORDS = {str: "a text", int: "a whole number", list: "a list", dict: "a table", bool: "true or false"}


def _one_of(words: tuple[str, ...], value: object, where: str) -> str:
    if value not in words:
        raise UsageError(f"{where}: got {value!r}; expected {', '.join(words)}")
    return str(value)
