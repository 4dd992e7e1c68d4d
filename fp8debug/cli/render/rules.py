"""The rules as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fp8debug.analysis.diagnosis import Rule
from fp8debug.analysis.thresholds import THRESHOLDS
from fp8debug.cli.render.document import document_text
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import count, listed

_TEXTS = ("symptom", "why", "advice")


def render_rules(rules: Sequence[Rule], looks: Looks) -> str:
    """One entry a rule: name, severity, what it finds, its parameters."""
    lines = [looks.bold(f"{count(len(rules), 'RULE', 'RULES')}, in the order in which they rank findings")]
    for rule in rules:
        lines += ["", *_head(rule, looks), *_parameters(rule, looks)]
    lines += [
        "",
        *wrap("`fp8debug rules NAME` shows one in full. docs/diagnosis.md says how to change them.", looks.width),
    ]
    return "\n".join(lines) + "\n"


def render_rule(rule: Rule, thresholds: Mapping[str, float], looks: Looks) -> str:
    """One rule in full, its query included."""
    lines = list(_head(rule, looks))
    for label, text in (("says", rule.sentence), *((name, getattr(rule, name)) for name in _TEXTS)):
        if text:
            lines += ["", *wrap(f"{label}: {escape(' '.join(text.split()))}", looks.width)]
    if rule.explains:
        lines += ["", *wrap(f"explains, so that they are not told beside it: {', '.join(rule.explains)}", looks.width)]
    lines += ["", *_parameters(rule, looks), *_thresholds(rule, thresholds, looks)]
    lines += [
        "",
        *(f"  {looks.dim(escape(line))}" for line in rule.sql.strip().splitlines()),
        "",
        f"  {escape(rule.page)}",
    ]
    return "\n".join(lines) + "\n"


def rules_json(rules: Sequence[Rule], thresholds: Mapping[str, float]) -> str:
    """One JSON object and a newline: each rule with its fields, and the thresholds in force."""
    document: dict[str, Any] = {
        "rules": [{**asdict(rule), "arguments": rule.arguments, "page": rule.page} for rule in rules],
        "thresholds": {name: {**asdict(t), "value": thresholds.get(name, t.default)} for name, t in THRESHOLDS.items()},
    }
    return document_text(document)


def _head(rule: Rule, looks: Looks) -> Iterator[str]:
    colour = {"error": looks.red, "warning": looks.yellow}.get(rule.severity, looks.dim)
    notes = [
        "" if rule.enabled else "switched off",
        f"changed: {escape('; '.join(rule.changes))}" if rule.changes else "",
        f"your own: {escape(rule.file)}" if rule.file else "",
    ]
    yield f"{looks.bold(escape(rule.name))}  {colour(rule.severity)}"
    yield from wrap(escape(rule.meaning), looks.width)
    if note := listed(list(filter(None, notes))):
        yield from (looks.yellow(line) for line in wrap(note, looks.width))


def _parameters(rule: Rule, looks: Looks) -> Iterator[str]:
    for name, parameter in (rule.parameters or {}).items():
        value, default = rule.arguments[name], parameter.default
        unit = f" {parameter.unit}" if parameter.unit else ""
        was = "" if value == default else f" (default {default:g})"
        text = f"{name} = {value:g}{unit}{was}: {parameter.meaning}; {parameter.source}"
        yield from wrap(escape(text), looks.width, indent="    ", hanging="  ")


def _thresholds(rule: Rule, values: Mapping[str, float], looks: Looks) -> Iterator[str]:
    for name in rule.thresholds:
        threshold = THRESHOLDS[name]
        value = values.get(name, threshold.default)
        was = "" if value == threshold.default else f" (default {threshold.default:.4g})"
        text = f"threshold {name} = {value:.4g}{was}: {threshold.meaning}; {threshold.source}"
        yield from wrap(text, looks.width, indent="    ", hanging="  ")
