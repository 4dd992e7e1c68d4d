"""A checkpoint against a reference, tensor by tensor and block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.records import Convention
from fp8debug.analysis.checkpoint.reference.compared import ComparedTensor, Comparison, Hypothesis
from fp8debug.analysis.checkpoint.reference.hits import hits_of
from fp8debug.analysis.checkpoint.reference.hypotheses import explain
from fp8debug.analysis.checkpoint.reference.judging import judge
from fp8debug.analysis.checkpoint.reference.matching import (
    Match,
    Matching,
    match,
    pair_of,
    tensors_of,
    turned,
)
from fp8debug.analysis.checkpoint.reference.misplaced import misplaced, reordered
from fp8debug.analysis.checkpoint.reference.notes import notes_of
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.reference.sentences import has_cause
from fp8debug.analysis.checkpoint.store import Store, open_store
from fp8debug.errors import Fp8DebugError

__all__ = ["ComparedTensor", "Comparison", "Hypothesis", "compare_opened", "compare_stores", "compare_with"]

Told = Callable[[str], None]
_UNLIKE = 0.5
"""Cosine below which two tensors are not the same weights."""


def compare_with(
    subject: Subject, reference: str | Path, told: Told = lambda words: None
) -> tuple[Comparison, list[Hit]]:
    """Hold a checkpoint against another one.

    Args:
        subject: the checkpoint.
        reference: path of the other one, in high precision or quantised in any dialect.
        told: progress.

    Raises:
        Fp8DebugError: the reference cannot be read, or has nothing in common.
        UsageError: the reference can be read in several ways.
    """
    with open_store(reference) as store:
        return compare_opened(subject, (store, read_convention(store)), str(reference), told)


def compare_opened(
    subject: Subject, theirs: tuple[Store, Convention], name: str, told: Told = lambda words: None
) -> tuple[Comparison, list[Hit]]:
    """Hold a checkpoint against another one that is open; `name` is what the reference is called.

    Raises:
        Fp8DebugError: they have nothing in common.
    """
    matching, tensors = compare_stores((subject.store, subject.convention), theirs, told, needs_causes=True)
    from fp8debug.analysis.checkpoint.reference.writer import writer_notes  # as in _explained

    unread = tuple(one for one in matching.extra if one in subject.store.tensors)
    matching = replace(matching, extra=tuple(one for one in matching.extra if one not in unread))
    notes = (*notes_of(matching, tensors, name, unread), *writer_notes(matching.matches, subject.store, theirs[0]))
    rows = {one.tensor.name: one.lines for one in matching.matches if one.lines < one.tensor.lines}
    comparison = Comparison(name, "reference", tensors, matching.missing, matching.extra, notes, rows)
    return comparison, hits_of(subject, matching, comparison)


def compare_stores(
    ours: tuple[Store, Convention], theirs: tuple[Store, Convention], told: Told, *, needs_causes: bool
) -> tuple[Matching, tuple[ComparedTensor, ...]]:
    """Match two open checkpoints and judge each tensor that both have.

    Args:
        ours, theirs: files and how they are read; theirs is the reference.
        told: progress.
        needs_causes: look for what explains a difference.

    Raises:
        Fp8DebugError: they have nothing in common.
    """
    our_tensors, their_tensors = tensors_of(ours[1], ours[0]), tensors_of(theirs[1], theirs[0])
    matching = match(our_tensors, their_tensors)
    if not matching.matches and not matching.misshapen:
        raise Fp8DebugError(_nothing_in_common(ours[0], theirs[0], our_tensors, their_tensors))
    others_turned = any(found.how == "transposed" for found in matching.matches)
    matches, compared = [], []
    for index, found in enumerate(matching.matches):
        told(f"comparing {index + 1:,} of {len(matching.matches):,}: {found.tensor.name}")
        kept, tensor = _judged(found, ours[0], theirs[0], may_be_turned=others_turned)
        matches.append(kept)
        compared.append(_with_causes(kept, tensor, ours[0], theirs[0]) if needs_causes else tensor)
    if needs_causes:
        compared = [
            _with_place(found, tensor, matches, ours[0], theirs[0])
            for found, tensor in zip(matches, compared, strict=True)
        ]
    return replace(matching, matches=tuple(matches)), tuple(compared)


def _judged(found: Match, store: Store, reference_store: Store, *, may_be_turned: bool) -> tuple[Match, ComparedTensor]:
    """The verdict on a tensor; a square one that is nothing like its reference is tried transposed, as others are."""
    tensor = judge(pair_of(found, store, reference_store), found.reference_name)
    other = turned(found) if may_be_turned and tensor.verdict == "different" else None
    if other is not None:
        again = judge(pair_of(other, store, reference_store), other.reference_name)
        if again.verdict != "different":
            return other, again
    return found, tensor


def _with_causes(found: Match, tensor: ComparedTensor, store: Store, reference_store: Store) -> ComparedTensor:
    if tensor.verdict not in ("different", "requantised") or _is_only_nonfinite(tensor):
        return tensor
    pair = pair_of(found, store, reference_store)
    return replace(tensor, hypotheses=_explained(pair, tensor))


def _with_place(
    found: Match, tensor: ComparedTensor, matches: Sequence[Match], store: Store, reference_store: Store
) -> ComparedTensor:
    """The tensor with the name that it or its scale belongs under, where it is nothing like the one it stands under."""
    from fp8debug.analysis.checkpoint.reference.owners import with_owner  # as in _explained

    tensor = with_owner(found, tensor, matches, store, reference_store)
    if tensor.verdict != "different" or tensor.cosine is None:
        return tensor
    known = tensor.hypotheses[0].name if has_cause(tensor) else None
    # Vectors of norms are all alike.
    if abs(tensor.cosine) > _UNLIKE and (known is not None or found.tensor.lines > 1):
        return tensor
    other = reordered(found, store, reference_store) if known in (None, "line_order") else None
    if other is None and known is None:
        other = misplaced(found, matches, store, reference_store)
    return tensor if other is None else replace(tensor, hypotheses=(other,))


def _is_only_nonfinite(tensor: ComparedTensor) -> bool:
    """Whether all that is finite is as it should be."""
    sqnr, healthy = tensor.sqnr_db, tensor.healthy_sqnr_db
    if not tensor.n_nonfinite or tensor.n == 0:
        return False
    return sqnr is None or (healthy is not None and sqnr > healthy - 1)


def _explained(pair: Pair, tensor: ComparedTensor) -> tuple[Hypothesis, ...]:
    near: tuple[int, ...] = ()
    if tensor.worst_block is not None and pair.keeps_all_blocks:
        near = (int(pair.block_starts()[tensor.worst_block[0]]),)
    with np.errstate(all="ignore"):
        return explain(pair, near)


def _nothing_in_common(
    ours: Store, theirs: Store, our_tensors: Iterable[object], their_tensors: Iterable[object]
) -> str:
    return (
        f"{theirs.path} has no tensor in common with {ours.path}: it holds {_first_names(their_tensors)}; the "
        f"checkpoint holds {_first_names(our_tensors)}. Give the reference of the same model"
    )


def _first_names(tensors: Iterable[object]) -> str:
    names = [str(getattr(tensor, "name", "")) for tensor in tensors]
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "") if names else "no tensors of numbers"
