"""Whose scale a tensor has that is not its own: that of a tensor near it, by what the reference gives for that one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor
from fp8debug.analysis.checkpoint.reference.hypotheses.gathering import gather
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import OF_OTHER_WEIGHTS, number
from fp8debug.analysis.checkpoint.reference.matching import Match, pair_of
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.errors import escape
from fp8debug.formats import FORMATS

_MOST_CANDIDATES = 16
_SAME = 1e-6


def with_owner(
    found: Match, tensor: ComparedTensor, matches: Sequence[Match], store: Store, reference_store: Store
) -> ComparedTensor:
    """The tensor with what is known of its scale, where that belongs to other weights by all that is known so far."""
    best = tensor.hypotheses[0] if tensor.hypotheses else None
    ours = found.tensor
    if best is None or OF_OTHER_WEIGHTS not in best.message or not isinstance(ours, Quantised) or len(ours.scales) != 1:
        return tensor
    evidence = gather(pair_of(found, store, reference_store))
    stored = evidence.cells.at_cells(evidence.factors)
    for other in _near(ours, matches):
        as_ours = replace(other, tensor=ours) if other.tensor.shape == ours.shape else other
        largest = gather(pair_of(as_ours, store, reference_store)).cell_amax
        most = FORMATS[ours.fmt].max
        if largest.shape == stored.shape and np.allclose(stored * most, largest, rtol=_SAME, atol=0):
            values = "value" if stored.size == 1 else "values"
            owner = (
                f"it is what {escape(other.tensor.name)} needs: its largest {values} in the reference / {number(most)}"
            )
            named = replace(best, name="copied_scale", message=best.message.replace(OF_OTHER_WEIGHTS, owner))
            return replace(tensor, hypotheses=(named, *tensor.hypotheses[1:]))
    return tensor


def _near(ours: Quantised, matches: Sequence[Match]) -> list[Match]:
    """Tensors of the same layer, then those of other layers, that could have the scale; of a single number, which may
    be the same by chance, those whose names differ in one part alone."""
    scale, parts = ours.grid_scale, ours.module.split(".")
    is_single = scale is None or scale.layout == "tensor"
    ranked = []
    for index, match in enumerate(matches):
        other = match.tensor
        if not isinstance(other, Quantised) or other.fmt != ours.fmt or other.name == ours.name:
            continue
        is_alike = other.shape == ours.shape or (is_single and _has_one_number(other))
        theirs = other.module.split(".")
        if not is_alike or len(theirs) != len(parts):
            continue
        differing = [at for at, (a, b) in enumerate(zip(parts, theirs, strict=True)) if a != b]
        if len(differing) == 1 or not is_single:
            ranked.append((len(differing), -min(differing, default=0), index, match))
    ranked.sort(key=lambda one: one[:3])
    return [one[3] for one in ranked[:_MOST_CANDIDATES]]


def _has_one_number(other: Quantised) -> bool:
    return other.grid_scale is None or other.grid_scale.layout == "tensor"
