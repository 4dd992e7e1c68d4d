"""Quantised tensors by the format of their codes, with the largest code of each of their blocks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.facts import CodeFacts, Int64Array
from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.formats import ELEMENT_FORMATS, Format, Uint8Array, decode


@dataclass(frozen=True, slots=True)
class Coded:
    """One tensor, and the blocks of it that hold something."""

    quantised: Quantised
    facts: CodeFacts
    largest: Int64Array
    """int64 (2^bits / 2,): blocks by their largest code, those that are all zero left out."""
    is_power_of_two: bool
    """Whether its scales all are."""

    @property
    def n(self) -> int:
        """Blocks."""
        return int(self.largest.sum())


def by_format(subject: Subject) -> dict[Format, list[Coded]]:
    """Tensors that were measured and hold something."""
    found: dict[Format, list[Coded]] = defaultdict(list)
    for one in subject.convention.quantised:
        facts = subject.facts.codes.get(one.name)
        if facts is None or facts.n_zero == facts.n:
            continue
        fmt = ELEMENT_FORMATS[one.fmt]
        if facts.block_histogram is not None:
            largest = facts.block_histogram.copy()
        else:
            largest = np.bincount(_code(facts.largest, fmt), minlength=fmt.sign_bit).astype(np.int64)
        largest[0] = 0
        scale = None if one.grid_scale is None else subject.facts.scales.get(one.grid_scale.name)
        found[fmt].append(Coded(one, facts, largest, scale is not None and scale.are_powers_of_two))
    return dict(found)


def _code(value: float, fmt: Format) -> Uint8Array:
    table = decode(np.arange(fmt.max_code + 1, dtype=np.uint8), fmt)
    return np.searchsorted(table, [value]).astype(np.uint8)


def value_of(code: int, fmt: Format) -> float:
    """What a code means, no scale applied."""
    return float(decode(np.array([code], np.uint8), fmt)[0])
