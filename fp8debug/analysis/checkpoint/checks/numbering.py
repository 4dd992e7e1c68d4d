"""Lists of layers and experts that have a number missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import Numbers, place_words, ranges_of, starred, with_numbers
from fp8debug.analysis.checkpoint.records import CheckPlace

_FEWEST = 3
_SMALLEST_SHARE_FOUND = 0.75
"""Lists with larger holes hold something else: a part of a model, layers of one kind."""
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_LISTS = ("layers", "layer", "h", "blocks", "block", "experts")


def numbering(subject: Subject) -> Iterator[Hit]:
    """Holes between the first and the last number, and experts that the other layers have."""
    lists = _lists(subject)
    by_pattern: dict[str, dict[Numbers, frozenset[int]]] = defaultdict(dict)
    for owner, listed in lists.items():
        pattern, numbers = starred(owner)
        by_pattern[pattern][numbers] = frozenset(listed)
    for pattern, members in by_pattern.items():
        usual, n_usual = Counter(members.values()).most_common(1)[0]
        has_usual = pattern.endswith("experts") and n_usual >= _FEWEST and n_usual >= 0.75 * len(members)
        for numbers, found in members.items():
            n_wanted = len(usual) if has_usual else max(found) - min(found) + 1
            if len(found) < max(_FEWEST, _SMALLEST_SHARE_FOUND * n_wanted):
                continue
            wanted = usual if has_usual else frozenset(range(min(found), max(found) + 1))
            if missing := wanted - found:
                yield _hit(pattern, numbers, missing, found)


def _lists(subject: Subject) -> dict[str, set[int]]:
    """Numbers below each list of modules that hold modules (`layers.0.mlp.up.weight`), by the name of the list."""
    lists: dict[str, set[int]] = defaultdict(set)
    for name in subject.store.tensors:
        parts = name.split(".")
        for place in range(1, len(parts) - 2):
            if _NUMBER.fullmatch(parts[place]) and _is_list(parts[place - 1]):
                lists[".".join(parts[:place])].add(int(parts[place]))
    return lists


def _is_list(name: str) -> bool:
    return name in _LISTS or name.endswith(("_layers", "_blocks"))


def _hit(pattern: str, numbers: Numbers, missing: frozenset[int], found: frozenset[int]) -> Hit:
    owner = with_numbers(pattern, numbers)
    where = place_words(pattern, numbers)
    of = f" in {where}" if where else ""
    return Hit(
        "number_missing",
        CheckPlace(
            owner,
            f"{owner} has no {ranges_of(missing)}{of}: {ranges_of(found)} are there.",
            numbers={"n_missing": len(missing), "n": len(found)},
        ),
        weight=len(missing),
    )
