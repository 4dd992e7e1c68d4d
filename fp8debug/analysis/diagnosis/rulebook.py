"""All rules in force: those shipped, the user's own, and what the user changes of either."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from fp8debug.analysis.diagnosis.rule import Rule, parse_rule
from fp8debug.analysis.query import admit
from fp8debug.errors import Fp8DebugError, UsageError, nearest
from fp8debug.reading import read_text
from fp8debug.settings import RuleSettings


@dataclass(frozen=True, slots=True)
class RuleBook:
    """Rules by name, in the order in which they are asked."""

    rules: tuple[Rule, ...]
    disabled: tuple[Rule, ...] = ()
    """Those that are switched off."""

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __getitem__(self, name: str) -> Rule:
        """The rule called `name`, in force or switched off.

        Raises:
            UsageError: there is none.
        """
        by_name = {rule.name: rule for rule in (*self.rules, *self.disabled)}
        if name not in by_name:
            raise UsageError(f"unknown rule {name!r}; did you mean {' or '.join(nearest(name, by_name) or by_name)}?")
        return by_name[name]


@cache
def shipped_rules() -> tuple[Rule, ...]:
    """The rules of this package, by priority and name."""
    folder = files("fp8debug.analysis") / "rules"
    rules = [
        parse_rule(entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"), entry.name)
        for entry in folder.iterdir()
        if entry.name.endswith(".sql")
    ]
    return tuple(sorted(rules, key=order_of))


def load_rules(settings: RuleSettings | None = None) -> RuleBook:
    """The rules in force.

    Args:
        settings: the user's; None: the rules as they are shipped.

    Raises:
        UsageError: a rule file that cannot be read or is none, a name that is unknown or taken, a bad value.
    """
    settings = settings or RuleSettings()
    by_name = {rule.name: rule for rule in shipped_rules()}
    for path in map(Path, settings.files):
        name = path.name.removesuffix(".sql")
        if name in by_name:
            raise UsageError(
                f"{path}: there is a rule {name!r} already; change it under [rules.{name}], or rename yours"
            )
        by_name[name] = _own_rule(name, path)
    for name, changes in settings.rules.items():
        if name not in by_name:
            near = nearest(name, by_name) or list(by_name)
            raise UsageError(f"{settings.source}: unknown rule {name!r}; did you mean {' or '.join(near)}?")
        by_name[name] = by_name[name].overridden(changes, settings.source)
    ordered = sorted(by_name.values(), key=order_of)
    return RuleBook(
        tuple(rule for rule in ordered if rule.enabled), tuple(rule for rule in ordered if not rule.enabled)
    )


def order_of(rule: Rule) -> tuple[int, str]:
    """Rank of a rule among the others, lowest first."""
    return rule.priority, rule.name


def _own_rule(name: str, path: Path) -> Rule:
    rule = parse_rule(name, _read(path), str(path))
    try:
        for query in (rule.sql, *(f"select {condition}" for condition in rule.only_if)):
            admit(query)
    except Fp8DebugError as error:
        raise UsageError(f"{path}: {error}") from error
    return replace(rule, file=str(path))


def _read(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the rule file {path}: {error}") from error
