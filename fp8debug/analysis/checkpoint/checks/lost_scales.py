"""Scales of inputs, of second levels and of caches that most siblings have and a few lack."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.completeness import Members, missing, names_of_scales
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import ending_of, module_of, starred
from fp8debug.analysis.checkpoint.checks.pairs import codes_without_scale

_FEWEST_WITH = 3
_LARGEST_SHARE_WITHOUT = 1 / 3
_SMALLEST_SHARE_ELSEWHERE = 2 / 3
"""Where few siblings can be compared, the layers of all other roles tell: so many of them have such a scale."""
_SEVERITIES = {"tensor": "error", "input": "error"}

Group = tuple[str, str]
"""Pattern of what holds the scales, and format of the codes beside them (empty: there are none)."""


def lost_scales(subject: Subject) -> Iterator[Hit]:
    """Single scales that are missing; those of the codes themselves are said by the check that pairs them."""
    kinds = names_of_scales(subject)
    groups = _groups(subject)
    shares = _shares(groups, kinds)
    for (pattern, fmt), members in groups.items():
        counts = Counter(ending for endings in members.values() for ending in endings)
        for ending, n_with in counts.items():
            kind = kinds.get((pattern, ending), "weight")
            n_without = len(members) - n_with
            if kind == "weight" or not n_without:
                continue
            is_usual = kind in _SEVERITIES and shares[fmt, kind] >= _SMALLEST_SHARE_ELSEWHERE and n_without <= n_with
            if is_usual or _most_have(pattern, n_with, n_without):
                for numbers, endings in members.items():
                    if ending not in endings:
                        severity = _SEVERITIES.get(kind, "warning")
                        yield missing(ending, pattern, numbers, n_without, len(members), severity)


def _most_have(pattern: str, n_with: int, n_without: int) -> bool:
    """Experts of a layer are all alike, layers may be of several kinds."""
    largest = 1 / 2 if "experts.*" in pattern else _LARGEST_SHARE_WITHOUT
    return n_with >= _FEWEST_WITH and n_without <= largest * (n_with + n_without)


def _groups(subject: Subject) -> dict[Group, Members]:
    formats = {module_of(one.name): one.fmt for one in subject.convention.quantised}
    by_pattern = {starred(module)[0]: fmt for module, fmt in formats.items()}
    for name in codes_without_scale(subject):
        formats[module_of(name)] = by_pattern[starred(module_of(name))[0]]
    groups: dict[Group, Members] = defaultdict(lambda: defaultdict(set))
    for name in subject.store.tensors:
        module = module_of(name)
        pattern, numbers = starred(module)
        groups[pattern, formats.get(module, "")][numbers].add(ending_of(name))
    return groups


def _shares(groups: dict[Group, Members], kinds: dict[tuple[str, str], str]) -> dict[tuple[str, str], float]:
    """How many of the modules with codes of a format hold a scale of a kind."""
    n_all: Counter[str] = Counter()
    n_with: Counter[tuple[str, str]] = Counter()
    for (pattern, fmt), members in groups.items():
        n_all[fmt] += len(members)
        for endings in members.values():
            n_with.update({(fmt, kind) for ending in endings if (kind := kinds.get((pattern, ending)))})
    return {(fmt, kind): n / n_all[fmt] for (fmt, kind), n in n_with.items()}
