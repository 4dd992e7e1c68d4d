"""A checkpoint as one dialect reads it."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.checkpoint.convention.applying import Applier
from fp8debug.analysis.checkpoint.convention.configuration import Stated, stated_in
from fp8debug.analysis.checkpoint.convention.header import entries_in
from fp8debug.analysis.checkpoint.convention.naming import Key
from fp8debug.analysis.checkpoint.convention.notes import Notes
from fp8debug.analysis.checkpoint.convention.pairing import Pairing, is_packed, pairings_of, values_shape
from fp8debug.analysis.checkpoint.convention.sorting import Codes, Sorted, sort_tensors
from fp8debug.analysis.checkpoint.convention.unexplained import is_plain, is_unexplained
from fp8debug.analysis.checkpoint.dialects import Dialect, ScaleSpelling
from fp8debug.analysis.checkpoint.records import Convention, Misfit, Quantised, Scale, Stored
from fp8debug.analysis.checkpoint.store import Store


@dataclass(frozen=True, slots=True)
class Reading:
    """What a dialect makes of a checkpoint."""

    dialect: Dialect
    sorted: Sorted
    stated: Stated
    quantised: tuple[Quantised, ...]
    spare: tuple[Scale, ...]
    """Scales of codes that have another one already."""
    misfits: tuple[Misfit, ...]
    notes: Notes

    @property
    def n_scaled(self) -> int:
        """Quantised tensors with a scale of their codes."""
        return sum(one.grid_scale is not None for one in self.quantised)

    @property
    def n_explained(self) -> int:
        """Tensors that the dialect has a word for, those that do not fit included."""
        found = self.sorted
        applied = sum(1 + len(one.scales) for one in self.quantised if one.scales)
        return (
            applied
            + len(self.misfits)
            + len(self.spare)
            + len({stored.name for stored, _, _ in found.others})
            + len(found.companions)
        )


def read_as(store: Store, dialect: Dialect) -> Reading:
    """Read a checkpoint as a dialect has it, whatever it is.

    Raises:
        UsageError: the dialect leaves open what a scale is for.
    """
    entries = entries_in(store.metadata) if dialect.reads_header else {}
    found, stated, notes = sort_tensors(store.tensors, dialect, entries), stated_in(store.configs, dialect), Notes()
    pairings: list[list[Pairing]] = []
    spare: list[Scale] = []
    for codes in found.codes:
        applied, more = pairings_of(codes)
        pairings.append(applied)
        spare += (_reciprocal(one, codes, notes) for one in more)
    applier = Applier(dialect, stated, notes)
    applier.prepare([one for ones in pairings for one in ones])
    quantised: list[Quantised] = []
    misfits: list[Misfit] = []
    for codes, ones in zip(found.codes, pairings, strict=True):
        scales = [applier.scale_of(one) for one in ones]
        misfits += (one for one in scales if isinstance(one, Misfit))
        quantised.append(_quantised(codes, tuple(one for one in scales if isinstance(one, Scale))))
    return Reading(dialect, found, stated, tuple(quantised), tuple(spare), tuple(misfits), notes)


def convention_of(reading: Reading, why: str) -> Convention:
    """The reading as what all others go by."""
    found, stated = reading.sorted, reading.stated
    return Convention(
        dialect=reading.dialect.name,
        title=reading.dialect.title,
        why=why,
        quantised=reading.quantised,
        scales=(*(_other(*one) for one in found.others), *reading.spare),
        orphan_scales=tuple(found.orphans),
        plain=tuple(one.name for one in found.rest if is_plain(one)),
        unknown=(*(one.name for one in found.rest if is_unexplained(one)), *found.unread),
        excluded=stated.excluded,
        targets=stated.targets,
        block=stated.blocks[0] if stated.blocks else None,
        block_from=stated.block_from,
        power_of_two=stated.power_of_two,
        assumptions=reading.notes.assumptions(),
        misfits=reading.misfits,
    )


def _quantised(codes: Codes, scales: tuple[Scale, ...]) -> Quantised:
    is_high_first = codes.spelling.is_high_first and is_packed(codes)
    return Quantised(
        codes.stored.name, codes.key.module, codes.fmt, values_shape(codes), scales, is_packed(codes), is_high_first
    )


def _reciprocal(stored: Stored, codes: Codes, notes: Notes) -> Scale:
    notes.add("checkpoint", "a second scale of the same codes is not applied", stored.name)
    layout = "tensor" if stored.n == 1 else "line"
    return Scale(stored.name, "reciprocal", stored.dtype, stored.shape, False, layout, module=codes.key.module)


def _other(stored: Stored, spelling: ScaleSpelling, key: Key) -> Scale:
    layout = "tensor" if stored.n == 1 else "column" if spelling.kind == "input" else "line"
    return Scale(stored.name, spelling.kind, stored.dtype, stored.shape, spelling.divides, layout, module=key.module)
