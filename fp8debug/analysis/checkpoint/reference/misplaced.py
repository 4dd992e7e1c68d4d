"""Weights that are right but stand in another place: experts, layers or projections that were swapped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fp8debug.analysis.checkpoint.reference.compared import Hypothesis
from fp8debug.analysis.checkpoint.reference.judging import judge
from fp8debug.analysis.checkpoint.reference.lines import Lines, lines_of
from fp8debug.analysis.checkpoint.reference.matching import Match, Source, pair_of
from fp8debug.analysis.checkpoint.reference.naming import parts_of, stem_of
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.metrics import Float64Array

_SAMPLE = 1 << 14
_MOST_CANDIDATES = 2000
_ALIKE = 0.9
"""Cosine of a sample of two tensors that may be the same; of different weights it is about 1 / sqrt(sample)."""


def misplaced(found: Match, matches: Sequence[Match], store: Store, reference_store: Store) -> Hypothesis | None:
    """The tensor of the reference that this one is, under another name; None: none of its shape is."""
    shape = found.tensor.shape
    candidates = [
        other for other in matches if other is not found and other.tensor.shape == shape and len(other.sources) == 1
    ]
    ours = _sample(lines_of(store, found.tensor), 0)
    for other in candidates[:_MOST_CANDIDATES]:
        if _cosine(ours, _of_source(reference_store, other.sources[0])) < _ALIKE:
            continue
        moved = Match(found.tensor, other.sources, other.lines, other.how)
        tensor = judge(pair_of(moved, store, reference_store), other.reference_name)
        if tensor.verdict != "different":
            name = other.tensor.name
            return Hypothesis("misplaced", f"these are the weights of {name}, under another name", 1.0, None)
    return None


def reordered(found: Match, store: Store, reference_store: Store) -> Hypothesis | None:
    """The order in which the two parts of a fused matrix stand, where it is the other one; None: it is not that."""
    parts = parts_of(stem_of(found.tensor))
    rows = found.tensor.shape[-2] if len(found.tensor.shape) > 1 else 1
    sources = _swapped(found.sources, rows) if len(parts) == 2 and found.lines == found.tensor.lines else ()
    if not sources:
        return None
    tensor = judge(pair_of(replace(found, sources=sources), store, reference_store), found.reference_name)
    if tensor.verdict == "different":
        return None
    first, second = (part.rpartition(".")[2] for part in parts)
    return Hypothesis("part_order", f"{second} stands before {first} here, after it in the reference", 1.0, None)


def _swapped(sources: tuple[Source, ...], rows: int) -> tuple[Source, ...]:
    """Sources of matrices of so many rows, the halves of each swapped; empty: they have no halves."""
    if len(sources) == 1 and rows % 2 == 0 and not sources[0].is_transposed:
        starts = range(sources[0].first, sources[0].last, rows)
        halves = [(start + rows // 2, start) for start in starts]
        return tuple(replace(sources[0], first=at, last=at + rows // 2) for pair in halves for at in pair)
    if len(sources) % 2 == 0 and sum(one.last - one.first for one in sources[:2]) == rows:
        return tuple(one for at in range(0, len(sources), 2) for one in (sources[at + 1], sources[at]))
    return ()


def _of_source(store: Store, source: Source) -> Float64Array:
    if source.is_transposed or source.length is not None:
        return np.zeros(0)
    return _sample(lines_of(store, source.tensor), source.first)


def _sample(lines: Lines, first: int) -> Float64Array:
    """The first values that are not few."""
    n = max(1, min(lines.lines - first, _SAMPLE // max(1, lines.length)))
    return np.nan_to_num(lines.values(first, first + n).astype(np.float64), posinf=0, neginf=0).reshape(-1)


def _cosine(one: Float64Array, other: Float64Array) -> float:
    if one.shape != other.shape:
        return 0.0
    size = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / size if size else 0.0
