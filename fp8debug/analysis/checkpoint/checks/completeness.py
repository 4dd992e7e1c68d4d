"""What most layers and experts have and a few lack: holes in the matrix of layers x experts x roles."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import (
    Numbers,
    ending_of,
    module_of,
    place_words,
    starred,
    with_numbers,
)
from fp8debug.analysis.checkpoint.checks.pairs import codes_without_scale
from fp8debug.analysis.checkpoint.records import CheckPlace

_FEWEST_WITH = 3
_LARGEST_SHARE_WITHOUT = 0.25
"""Where more lack something than this, layers are of several kinds and nothing is missing."""
_SHARE_OF_ACCIDENTS = 0.02
"""What more layers lack than this (and more than one) is left out on purpose."""

Members = dict[Numbers, set[str]]
"""What the modules of one name pattern hold, by their numbers."""


def completeness(subject: Subject) -> Iterator[Hit]:
    """Tensors, and modules, that a few members of a list lack."""
    yield from _lost_tensors(subject)
    yield from _lost_modules(subject)


def _lost_tensors(subject: Subject) -> Iterator[Hit]:
    """What stands beside the weights of most siblings, scales apart: a bias."""
    with_codes = {module_of(one.name) for one in subject.convention.quantised}
    with_codes |= {module_of(name) for name in codes_without_scale(subject)}
    scales = names_of_scales(subject)
    groups: dict[tuple[str, bool], Members] = defaultdict(lambda: defaultdict(set))
    for name in subject.store.tensors:
        module = module_of(name)
        pattern, numbers = starred(module)
        groups[pattern, module in with_codes][numbers].add(ending_of(name))
    for (pattern, _), members in groups.items():
        # What has a number itself and holds tensors is a step of a sequence, and these are all different.
        if pattern.endswith("*") and not pattern.endswith("experts.*"):
            continue
        for ending, lacking in _holes(members):
            for numbers in lacking:
                if (pattern, ending) not in scales and _is_accident(pattern, numbers, len(lacking), members):
                    yield missing(ending, pattern, numbers, len(lacking), len(members), "warning")


def names_of_scales(subject: Subject) -> dict[tuple[str, str], str]:
    """Kinds of scales, by the pattern of what holds them and the end of their names."""
    of_codes = (scale for one in subject.convention.quantised for scale in one.scales)
    return {
        (starred(module_of(scale.name))[0], ending_of(scale.name)): scale.kind
        for scale in (*subject.convention.scales, *of_codes)
    }


def _holes(members: Members) -> Iterator[tuple[str, list[Numbers]]]:
    """What most members have, and those that lack it."""
    counts = Counter(ending for endings in members.values() for ending in endings)
    for ending, n_with in counts.items():
        n_without = len(members) - n_with
        if n_without and n_with >= _FEWEST_WITH and n_without <= _LARGEST_SHARE_WITHOUT * len(members):
            yield ending, [numbers for numbers, endings in members.items() if ending not in endings]


def _lost_modules(subject: Subject) -> Iterator[Hit]:
    """Single modules (`w1`, `k_proj`) that one member lacks while it has all the others."""
    groups: dict[str, Members] = defaultdict(lambda: defaultdict(set))
    for module in {module_of(name) for name in subject.store.tensors}:
        holder, _, child = module.rpartition(".")
        if holder and not starred(child)[1]:
            pattern, numbers = starred(holder)
            groups[pattern][numbers].add(child)
    for pattern, members in groups.items():
        usual = Counter(map(frozenset, members.values())).most_common(1)[0][0]
        for child, lacking in _holes(members):
            for numbers in lacking:
                is_alike = child in usual and members[numbers] == usual - {child}
                if is_alike and _is_accident(pattern, numbers, len(lacking), members):
                    yield missing(child, pattern, numbers, len(lacking), len(members), "warning")


def _is_accident(pattern: str, numbers: Numbers, n_lacking: int, members: Members) -> bool:
    """Whether what one member lacks is not left out on purpose, as whole kinds of layers do."""
    if n_lacking > max(1, _SHARE_OF_ACCIDENTS * len(members)):
        return False
    if ".experts.*" in pattern:
        return True
    # The first and the last layer of many models are built otherwise.
    siblings = [other for other in members if other[:-1] == numbers[:-1]]
    return bool(numbers) and numbers not in (min(siblings), max(siblings))


def missing(what: str, pattern: str, numbers: Numbers, n_without: int, n: int, severity: str) -> Hit:
    """One member that lacks something, `n_without` of `n` that do."""
    owner = with_numbers(pattern, numbers)
    where = place_words(pattern, numbers) or owner
    return Hit(
        "tensor_missing",
        CheckPlace(
            f"{owner}.{what}" if owner else what,
            f"MISSING {what}: {where} ({n_without:,} of {n:,}), in {owner or 'the checkpoint'}.",
            numbers={"n_without": n_without, "n": n},
        ),
        severity=severity,
        weight=1 / n_without,
    )
