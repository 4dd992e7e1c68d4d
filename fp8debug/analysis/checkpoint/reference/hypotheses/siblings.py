"""Scales of another layer in the place of the right ones: gate's and up's, q's and k's, those of a neighbour."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.grids import grid_of
from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.records import Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.errors import escape

MOST_TRIED = 64
_NUMBER = re.compile(r"\d+")


def scales_of_others(evidence: Evidence) -> Iterator[Trial]:
    """Scales of the same name, shape and dtype of other layers, nearest names first."""
    quantised = evidence.quantised
    if quantised is None:
        return
    store = evidence.pair.store
    for scale in quantised.scales:
        own = evidence.grids[scale.name]
        for name in _others(evidence, scale):
            stored = numbers(store.whole(name), scale.encoding).reshape(scale.shape)
            grid = grid_of(quantised, scale, stored)
            if np.array_equal(grid, own, equal_nan=True):
                continue
            words = (
                f"the codes belong to the scale of another tensor, {escape(name)}: with it in the place of "
                f"{escape(scale.name)} they are right"
            )
            factors = evidence.factors_under({scale.name: grid})
            found = try_reading(evidence, Reading("other_layer", words, factors, needs_codes=np.unique(grid).size < 8))
            if found is not None:
                yield found


def copied_from(evidence: Evidence, scale: Scale) -> str | None:
    """The nearest scale that holds the same bytes, of another role in the layer or of another layer; None: there is
    none, or they are nothing special (1.0)."""
    tensors, own = evidence.pair.store.tensors, evidence.pair.store.whole(scale.name)
    stored = tensors[scale.name]
    alike = [
        (_distance(scale.name, name), name)
        for name, other in tensors.items()
        if name != scale.name and other.shape == stored.shape and other.dtype == stored.dtype
    ]
    near = [name for distance, name in sorted(alike) if distance[0] == 1][:MOST_TRIED]
    if np.all(evidence.grids[scale.name] == 1):
        return None
    return next((name for name in near if np.array_equal(evidence.pair.store.whole(name), own)), None)


def are_near(name: str, other: str) -> bool:
    """Whether two scales are of one layer, or of the same part of layers next to each other."""
    differing, apart, _ = _distance(name, other)
    return differing == 1 and apart <= 1


def _others(evidence: Evidence, scale: Scale) -> list[str]:
    """Names of scales that could have been taken, those whose names differ least first."""
    tensors = evidence.pair.store.tensors
    own = tensors[scale.name]
    ending = scale.name.rpartition(".")[2]
    alike = [
        name
        for name, stored in tensors.items()
        if name != scale.name and stored.shape == own.shape and stored.dtype == own.dtype and name.endswith(ending)
    ]
    return sorted(alike, key=lambda name: _distance(scale.name, name))[:MOST_TRIED]


def _distance(own: str, name: str) -> tuple[int, int, str]:
    """How many parts of the names differ, and by how much the numbers in them do."""
    ours, theirs = own.split("."), name.split(".")
    if len(ours) != len(theirs):
        return len(ours) + len(theirs), 0, name
    differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
    apart = sum(abs(int(a[:9]) - int(b[:9])) for a, b in zip(_NUMBER.findall(own), _NUMBER.findall(name), strict=False))
    return differing, apart, name
