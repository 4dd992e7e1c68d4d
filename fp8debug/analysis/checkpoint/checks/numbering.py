"""Lists of layers and experts that have a number missing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import Numbers, ending_of, place_words, ranges_of, starred, with_numbers
from fp8debug.analysis.checkpoint.records import CheckPlace

_FEWEST = 3
_SMALLEST_SHARE_FOUND = 0.75
"""Lists with larger holes hold something else: a part of a model, layers of one kind."""
_MOST = 100_000
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_LAYERS = ("layers", "layer", "h")
"""Lists whose length is that of `num_hidden_layers`; of convolutional models it counts something else."""
_LISTS = ("layers", "layer", "h", "blocks", "block", "experts")


def numbering(subject: Subject) -> Iterator[Hit]:
    """Holes between the first and the last number, experts that other layers have, and what is configured beyond."""
    by_pattern: dict[str, dict[Numbers, frozenset[int]]] = defaultdict(dict)
    for owner, listed in _lists(subject).items():
        pattern, numbers = starred(owner)
        by_pattern[pattern][numbers] = frozenset(listed)
    configured = _Configured(subject.store.configs)
    for pattern, members in by_pattern.items():
        usual = _usual(members) if pattern.endswith("experts") else frozenset[int]()
        for numbers, found in members.items():
            wanted = usual | _without_holes(found, configured.n_experts if pattern.endswith("experts") else 0)
            if len(found) >= max(_FEWEST, _SMALLEST_SHARE_FOUND * len(wanted)) and (missing := wanted - found):
                yield _hit(pattern, numbers, missing, found)
    yield from _last_layers(by_pattern, configured.n_layers)


def _usual(members: dict[Numbers, frozenset[int]]) -> frozenset[int]:
    """The numbers that most lists of a name have; none where they differ."""
    usual, n = Counter(members.values()).most_common(1)[0]
    return usual if n >= max(_FEWEST, _SMALLEST_SHARE_FOUND * len(members)) else frozenset()


def _without_holes(found: frozenset[int], configured: int) -> frozenset[int]:
    first, last = min(found), max(found) + 1
    if first == 0 and last < configured:
        last = configured
    # A list that is mostly holes is none: ten numbers below a billion.
    return frozenset(range(first, last)) if len(found) >= _SMALLEST_SHARE_FOUND * (last - first) else found


class _Configured:
    """What config.json counts; 0: it does not say."""

    def __init__(self, configs: Mapping[str, Mapping[str, Any]]) -> None:
        config = configs.get("config.json", {})
        inner = (config.get(key) for key in ("text_config", "llm_config"))
        tables = [config, *(table for table in inner if isinstance(table, Mapping))]
        self.n_layers = _first(tables, ("num_hidden_layers",))
        self.n_experts = _first(tables, ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"))


def _first(tables: list[Mapping[str, Any]], keys: tuple[str, ...]) -> int:
    values = (table.get(key) for table in tables for key in keys)
    return next((value for value in values if isinstance(value, int) and 0 < value < _MOST), 0)


def _last_layers(by_pattern: dict[str, dict[Numbers, frozenset[int]]], n_layers: int) -> Iterator[Hit]:
    """The longest list of layers ends before the number that is configured."""
    lists = [
        (max(found) + 1, pattern, numbers, found)
        for pattern, members in by_pattern.items()
        if ending_of(pattern) in _LAYERS
        for numbers, found in members.items()
    ]
    n, pattern, numbers, found = max(lists, default=(0, "", (), frozenset[int]()), key=lambda one: one[0])
    if min(found, default=1) == 0 and _SMALLEST_SHARE_FOUND * n_layers <= n < n_layers:
        yield _hit(pattern, numbers, frozenset(range(n, n_layers)), found)


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
