"""Scales of one role in all layers and experts: what a single one is held against."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, isinf, isnan, log2

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.checks.names import ending_of, place_words, starred
from fp8debug.analysis.checkpoint.facts import ScaleFacts
from fp8debug.analysis.checkpoint.records import Scale

FAR_BITS = {"input": 14.0}
"""Bits off the median from which a scale is far off, where it is not DEFAULT_FAR_BITS. Inputs of single layers are
known to be a thousand times larger than those of all others: activations of a few tokens are."""
DEFAULT_FAR_BITS = 8.0
_FEWEST = 4
_LISTED = 12


@dataclass(frozen=True, slots=True)
class Member:
    """One tensor of scales."""

    scale: Scale
    facts: ScaleFacts
    is_in_use: bool
    """Whether any code that it belongs to is not zero, as far as is known."""


@dataclass(frozen=True, slots=True)
class One:
    """One number that stands for a tensor, or for one matrix of a stack."""

    scale: Scale
    at: int | None
    """Number of the matrix; None: it stands for the tensor."""
    value: float
    is_in_use: bool
    """Whether any code of it is not zero."""
    bits: float = 0.0
    """log2(value / median of the family)."""


class Family:
    """Scales whose names differ in numbers alone.

    Args:
        pattern: their name, with stars for the numbers.
        members: in the order of the file.
        singles: numbers of them.
        n_of_kind: tensors of scales of that kind in the checkpoint.

    Attributes:
        outliers: numbers that are far from all others.
    """

    def __init__(self, pattern: str, members: list[Member], singles: list[One], n_of_kind: int) -> None:
        self.pattern, self.members, self.n_of_kind = pattern, members, n_of_kind
        self.kind = members[0].scale.kind
        self.ending = ending_of(pattern)
        self._singles = singles
        usable = [one.value for one in singles if _state(one.value) == "" and one.is_in_use]
        self.n = len(singles)
        self.median = float(np.median(usable)) if usable else 0.0
        columns = zip(*(starred(member.scale.name)[1] for member in members), strict=True)
        self._differing = [len(set(column)) > 1 for column in columns]
        self.outliers = self._found_outliers(len(usable))

    @property
    def are_powers_of_two(self) -> bool:
        """Whether all of them are."""
        return all(member.facts.are_powers_of_two for member in self.members)

    @cached_property
    def share_unusable(self) -> float:
        """Share of its numbers that are NaN, infinite, zero or negative."""
        return sum(_state(one.value) != "" for one in self._singles) / max(self.n, 1)

    def _found_outliers(self, n_usable: int) -> tuple[One, ...]:
        if n_usable < _FEWEST:
            return ()
        threshold = FAR_BITS.get(self.kind, DEFAULT_FAR_BITS)
        usable = [one for one in self._singles if _state(one.value) == "" and one.is_in_use]
        bits = np.array([log2(one.value) - log2(self.median) for one in usable])
        is_far = np.abs(bits) > threshold
        spread = float(np.abs(bits[~is_far]).max(initial=0.0))
        # Far from the median alone is not enough: a family that is spread out has members everywhere.
        is_far &= np.abs(bits) > 2 * spread
        if is_far.sum() * 4 > n_usable:
            return ()
        return tuple(
            One(usable[i].scale, usable[i].at, usable[i].value, True, float(bits[i])) for i in np.flatnonzero(is_far)
        )

    @cached_property
    def summary(self) -> str:
        """` 4 of 8: infinite (2), NaN (4), zero (5), far off (6).`; empty where there is but one number."""
        if self.n < 2:
            return ""
        far = {(one.scale.name, one.at) for one in self.outliers}
        texts: dict[str, list[str]] = defaultdict(list)
        for one in self._singles:
            word = _state(one.value) or ("far off" if (one.scale.name, one.at) in far else "")
            if word and (one.is_in_use or word in ("NaN", "infinite")):
                texts[word].append(self._short_place(one))
        n_bad = sum(map(len, texts.values()))
        if n_bad < 2:
            return ""
        listed = ", ".join(f"{word} ({_some(places)})" for word, places in texts.items())
        return f" Of {self.n:,} siblings {n_bad:,} are unusable or far off, {self.n - n_bad:,} are fine: {listed}."

    def _short_place(self, one: One) -> str:
        """The numbers of its name in which the family differs: `2` of expert 2, where all are of one layer."""
        numbers = starred(one.scale.name)[1]
        told = [str(number) for number, differs in zip(numbers, self._differing, strict=True) if differs]
        return ".".join([*told, *([] if one.at is None else [str(one.at)])])


def families(subject: Subject) -> tuple[Family, ...]:
    """All scales of a checkpoint that were read, by role."""
    scales = {scale.name: scale for one in subject.convention.quantised for scale in one.scales}
    in_use = {
        scale.name: codes.largest > 0 or codes.n_nan > 0
        for one in subject.convention.quantised
        if (codes := subject.facts.codes.get(one.name)) is not None
        for scale in one.scales
    }
    scales |= {scale.name: scale for scale in subject.convention.scales}
    groups: dict[str, list[Member]] = defaultdict(list)
    for name, scale in scales.items():
        if name in subject.facts.scales:
            member = Member(scale, subject.facts.scales[name], in_use.get(name, True))
            groups[starred(name)[0]].append(member)
    n_of_kind = Counter(member.scale.kind for members in groups.values() for member in members)
    return tuple(
        Family(
            pattern,
            members,
            [one for member in members for one in _singles(member)],
            n_of_kind[members[0].scale.kind],
        )
        for pattern, members in groups.items()
    )


def place_of(scale: Scale, at: int | None = None) -> str:
    """`layers.0.experts.2.w1.input_scale (layer 0 expert 2)`, with the number of a matrix where it is of a stack."""
    words = place_words(*starred(scale.name))
    words = " ".join(filter(None, (words, "" if at is None else f"[{at}]")))
    return f"{scale.name} ({words})" if words else scale.name


def _singles(member: Member) -> list[One]:
    facts, scale, is_in_use = member.facts, member.scale, member.is_in_use
    if scale.layout == "tensor" and facts.n > 1 and facts.values is not None:
        return [One(scale, at, float(value), is_in_use) for at, value in enumerate(facts.values.reshape(-1))]
    if facts.n == 1 and facts.values is not None:
        return [One(scale, None, float(facts.values.reshape(-1)[0]), is_in_use)]
    return [] if facts.median is None else [One(scale, None, facts.median, is_in_use)]


def _state(value: float) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "infinite"
    if value == 0:
        return "zero"
    return "negative" if value < 0 or not isfinite(value) else ""


def _some(places: list[str]) -> str:
    more = f" and {len(places) - _LISTED:,} more" if len(places) > _LISTED else ""
    return ", ".join(places[:_LISTED]) + more
