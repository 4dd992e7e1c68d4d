"""Codes beside which two scales of one kind are stored."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.names import ending_of, owner_of
from fp8debug.analysis.checkpoint.numbers import can_be_numbers, numbers
from fp8debug.analysis.checkpoint.records import CheckPlace, Quantised, Scale


def scale_twice(subject: Subject) -> Iterator[Hit]:
    """Two names for the scale of the same codes, of which readers pick different ones."""
    spare = _spare_scales(subject)
    inverses: dict[str, list[Scale]] = {}
    apart = {scale.name for scale in subject.convention.scales}
    for scale in subject.convention.scales:
        # Transformer Engine's inverses are of the scales in the extra state, not of those of codes.
        if scale.kind == "reciprocal" and scale.name.replace("_inv", "") not in apart - {scale.name}:
            inverses.setdefault(scale.module, []).append(scale)
    for one in subject.convention.quantised:
        main = one.grid_scale
        if main is None:
            continue
        others = [scale.name for scale in one.scales if scale.kind == "weight" and scale is not main]
        others += spare.get(one.name, [])
        for name in others:
            yield _two_scales(one, main, name, _have_same_numbers(subject, main, name))
        for inverse in inverses.get(one.module, []):
            # Of the same shape and with other numbers it may be the inverse, which is checked elsewhere.
            are_same = _have_same_numbers(subject, main, inverse.name)
            if inverse.name not in others and (
                inverse.shape != main.shape or (are_same and not _is_one(subject, main))
            ):
                yield _two_scales(one, main, inverse.name, are_same)


def _two_scales(one: Quantised, main: Scale, other: str, are_same: bool) -> Hit:
    names = f"{ending_of(main.name)} and {ending_of(other)}"
    told = "the same numbers" if are_same else "other numbers"
    place = CheckPlace(one.name, f"{one.name} has two scales, {names}, with {told}.", brief=f"{names}, {told}")
    return Hit("scale_twice", place, severity="note" if are_same else None)


def _is_one(subject: Subject, scale: Scale) -> bool:
    return bool(np.all(numbers(subject.store.whole(scale.name), scale.encoding) == 1))


def _have_same_numbers(subject: Subject, scale: Scale, other: str) -> bool:
    stored = subject.store.tensors[other]
    if stored.n != subject.store.tensors[scale.name].n or not can_be_numbers(stored.dtype):
        return False
    first = numbers(subject.store.whole(scale.name), scale.encoding)
    second = numbers(subject.store.whole(other), stored.dtype)
    return bool(np.array_equal(first.reshape(-1), second.reshape(-1), equal_nan=True))


def _spare_scales(subject: Subject) -> dict[str, list[str]]:
    """Scales that no reading uses although they stand beside codes that have one, by the name of the codes."""
    convention = subject.convention
    by_module = {one.module: one for one in convention.quantised if one.grid_scale is not None}
    used = {scale.name for one in convention.quantised for scale in one.scales}
    used |= {scale.name for scale in convention.scales} | {misfit.scale for misfit in convention.misfits}
    used |= {*convention.plain, *(one.name for one in convention.quantised)}
    spare: dict[str, list[str]] = {}
    for name in subject.store.tensors:
        if name not in used and "scale" in ending_of(name) and owner_of(name) in by_module:
            spare.setdefault(by_module[owner_of(name)].name, []).append(name)
    return spare
