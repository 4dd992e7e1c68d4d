"""Entries of a plan file as rules over names, and the stricter rules that they were probably meant to be."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fp8debug.analysis.plans.paths import fqn
from fp8debug.rundir import LayerInfo

Matches = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry."""

    text: str
    """As the file has it."""
    does: str
    """What becomes of a layer that matches, in words."""
    matches: Matches
    """Of the target's name for a layer."""
    exactly: Matches | None = None
    """The same with whole numbers and words: what it takes beyond this was hardly meant. None: nothing is known."""
    literal: str | None = None
    """The entry as a plain name; where a layer has it, the others that match were hardly meant."""
    place: str = ""
    """Section or matcher that it stands in."""
    keeps: bool = True
    """Whether it keeps what matches out of the recipe of the rest."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan in somebody's format."""

    format: str
    """One of `plans.TARGETS`."""
    rules: tuple[Rule, ...]
    path_of: Callable[[LayerInfo], str | None] = fqn
    """The target's name for a layer; None where it is none to the target."""
    own_name: Callable[[LayerInfo], str] = fqn
    """The name in the whole model that a literal entry would mean."""
    problems: tuple[str, ...] = field(default=())
    """What the target itself would refuse or pass over, a sentence each."""
    one_section: bool = False
    """Whether a layer may match one section only."""
    first_wins: bool = False
    """Whether the first rule that matches decides."""


def part_rule(text: str, does: str) -> Rule:
    """A rule that takes every name which `text` is a part of."""
    start = r"(?<!\w)" if re.match(r"\w", text) else ""
    end = r"(?!\w)" if re.search(r"\w$", text) else ""
    bounded = re.compile(start + re.escape(text) + end)
    return Rule(text, does, lambda name: text in name, lambda name: bounded.search(name) is not None, text)


def regex_rules(pattern: str, does: str, place: str) -> Iterator[Rule]:
    """One rule for each alternative of a pattern for `re.search`; re.error when it does not compile."""
    for alternative, whole in _alternatives(pattern):
        compiled, strict = re.compile(whole), whole_numbers(whole)
        yield Rule(alternative, does, _searcher(compiled), strict and _searcher(strict), place=place)


def whole_numbers(pattern: str) -> re.Pattern[str] | None:
    """The regex with every number in it standing alone: `layers.1` no longer found in `layers.10`.

    Numbers in escapes, classes, groups' heads and repetitions are left alone. None when nothing would change.
    """
    token = re.compile(
        r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\{[\d,]*\}|\(\?(?:[a-zA-Z-]*[:)]|>|<?[=!]|P<\w+>|P=\w+)|\d+|.", re.DOTALL
    )
    parts = [
        rf"(?:(?<!\d){part}(?!\d))" if part.isdecimal() else part for part in token.findall(pattern)
    ]  # a repetition after it repeats all of it: for names that makes no difference
    if "".join(parts) == pattern:
        return None
    try:
        return re.compile("".join(parts))
    except (re.error, OverflowError, RecursionError):
        return None


def _searcher(pattern: re.Pattern[str]) -> Matches:
    return lambda name: pattern.search(name) is not None


def _alternatives(pattern: str) -> Iterator[tuple[str, str]]:
    """Each alternative as (its text, the pattern with it alone); of the outermost ones, or of one group at the end."""
    for head, inner, tail in _splits(pattern):
        parts = list(_top_level(inner))
        if len(parts) > 1 or head:
            yield from ((part, head + part + tail) for part in parts)
            return
    yield pattern, pattern


def _splits(pattern: str) -> Iterator[tuple[str, str, str]]:
    yield "", pattern, ""
    if pattern.endswith(")$") and pattern.startswith("^"):
        depth = 0
        for at in range(len(pattern) - 2, -1, -1):  # the group that ends the pattern begins where depth is 0 again
            if pattern[at] in "()" and (at == 0 or pattern[at - 1] != "\\"):
                depth += 1 if pattern[at] == ")" else -1
            if depth == 0:
                if pattern.startswith("(?:", at):
                    yield pattern[: at + 3], pattern[at + 3 : -2], ")$"
                return


def _top_level(pattern: str) -> Iterator[str]:
    """Parts between the `|` that stand in no group or class."""
    depth, start = 0, 0
    for token in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|[()|]", pattern, re.DOTALL):
        if token[0] == "|" and depth == 0:
            yield pattern[start : token.start()]
            start = token.end()
        depth += {"(": 1, ")": -1}.get(token[0], 0)
    yield pattern[start:]
