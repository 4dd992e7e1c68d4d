"""What a plan file would match of a model's layers, and what not."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fp8debug.analysis.plans.export import Names
from fp8debug.analysis.plans.reading import read_file
from fp8debug.analysis.plans.rules import PlanFile, Rule
from fp8debug.errors import nearest, some
from fp8debug.rundir import LayerInfo


@dataclass(frozen=True, slots=True)
class CheckedRule:
    """One entry of the file and the layers that it takes."""

    text: str
    """The entry."""
    place: str
    """Section or matcher that it stands in; empty where there are none."""
    does: str
    matched: tuple[str, ...]
    """Layers, by their names in the run or the model."""
    beyond: tuple[str, ...]
    """Those of them that were hardly meant: `layers.10` by `layers.1`."""
    nearest: tuple[str, ...]
    """The target's names that come nearest to an entry which matches nothing."""
    note: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it matches something, and nothing that was hardly meant."""
        return bool(self.matched) and not self.beyond and not self.note


@dataclass(frozen=True, slots=True)
class Check:
    """The whole answer."""

    format: str
    rules: tuple[CheckedRule, ...]
    problems: tuple[str, ...]
    """What the target would refuse or pass over."""
    paths: dict[str, str]
    """Layers that there are to the target: their names in the run or the model → its own."""
    left: tuple[str, ...]
    """Those that no entry takes: they keep the recipe of the rest."""

    @property
    def is_clean(self) -> bool:
        """Whether every entry does what it was meant for."""
        return not self.problems and all(rule.is_clean for rule in self.rules)


def check_file(path: Path, layers: Sequence[LayerInfo], names: Names = "te") -> Check:
    """Hold a plan file against layers.

    Args:
        path: a plan in the format of any target.
        layers: of a run, of a model, or mere names.
        names: how Transformer Engine's debug API names layers.

    Raises:
        UsageError: the file is no plan of a known kind.
    """
    found = check(read_file(path, names), layers)
    if names == "te" and found.format == "te" and found.rules and not any(rule.matched for rule in found.rules):
        taken = {name for rule in check(read_file(path, "model"), layers).rules for name in rule.matched}
        if taken:
            hint = f"no entry matches an inferred name; with --names model they match {some(sorted(taken))}"
            return replace(found, problems=(*found.problems, hint))
    return found


def check(plan: PlanFile, layers: Sequence[LayerInfo]) -> Check:
    """Hold the rules of a file against layers."""
    paths = [(layer, path) for layer in layers if (path := plan.path_of(layer)) is not None]
    taken_by: dict[str, list[Rule]] = defaultdict(list)
    checked = []
    for rule in plan.rules:
        hits = [(layer, path) for layer, path in paths if rule.matches(path)]
        beyond = _beyond(plan, rule, hits)
        near = () if hits else tuple(_nearest(rule, [path for _, path in paths]))
        note = _shadowed(rule, [taken_by[layer.name] for layer, _ in hits]) if plan.first_wins else ""
        matched = tuple(layer.name for layer, _ in hits)
        checked.append(CheckedRule(rule.text, rule.place, rule.does, matched, beyond, near, note))
        for name in matched:
            taken_by[name].append(rule)
    problems = [*plan.problems, *(_doubles(taken_by) if plan.one_section else ())]
    left = [layer.name for layer, _ in paths if not any(rule.keeps for rule in taken_by[layer.name])]
    return Check(plan.format, tuple(checked), tuple(problems), {layer.name: path for layer, path in paths}, tuple(left))


def _beyond(plan: PlanFile, rule: Rule, hits: list[tuple[LayerInfo, str]]) -> tuple[str, ...]:
    """Layers that the rule takes beside those that have its very name, or its whole numbers and words."""
    meant = [layer.name for layer, _ in hits if plan.own_name(layer) == rule.literal]
    if not meant and rule.exactly is not None:
        meant = [layer.name for layer, path in hits if rule.exactly(path)]
    return tuple(layer.name for layer, _ in hits if layer.name not in meant) if meant else ()


def _shadowed(rule: Rule, earlier: list[list[Rule]]) -> str:
    """Words for a rule that never decides, since others stand before it."""
    first = [rules[0] for rules in earlier if rules]
    if not first or len(first) < len(earlier) or all(other.does == rule.does for other in first):
        return ""
    return f"never decides: {some(list(dict.fromkeys(other.place for other in first)))} before it takes what it matches"


def _doubles(taken_by: dict[str, list[Rule]]) -> list[str]:
    """Layers that several sections match, which nvdlfw_inspect refuses."""
    doubles: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, rules in taken_by.items():
        places = tuple(dict.fromkeys(rule.place for rule in rules))
        if len(places) > 1:
            doubles[places].append(name)
    return [
        f"sections {' and '.join(places)} both match {some(names)}: nvdlfw_inspect stops the training over that"
        for places, names in doubles.items()
    ]


def _nearest(rule: Rule, paths: list[str]) -> list[str]:
    return nearest(_plain(rule.text), paths) or paths[:3]


def _plain(text: str) -> str:
    """A pattern without the signs of its language, to look for names like it."""
    text = re.sub(r"\(\?:[^()]*(?:\([^()]*\)[^()]*)*\)[*?]?|\(\?!\)", "", text)
    return re.sub(r"[\\^$*\[\]]", "", text)
