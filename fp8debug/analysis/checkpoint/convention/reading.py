"""A checkpoint as one dialect reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fp8debug.analysis.checkpoint.convention.applying import Applier, Notes, Pairing
from fp8debug.analysis.checkpoint.convention.configuration import Stated, stated_in
from fp8debug.analysis.checkpoint.convention.sorting import Codes, Sorted, sort_tensors
from fp8debug.analysis.checkpoint.convention.unexplained import is_plain, is_unexplained
from fp8debug.analysis.checkpoint.dialects import Dialect, ScaleSpelling
from fp8debug.analysis.checkpoint.records import Convention, Misfit, Quantised, Scale, Stored
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.formats import FORMATS


@dataclass(frozen=True, slots=True)
class Reading:
    """What a dialect makes of a checkpoint."""

    dialect: Dialect
    sorted: Sorted
    stated: Stated
    quantised: tuple[Quantised, ...]
    misfits: tuple[Misfit, ...]
    notes: Notes

    @property
    def n_explained(self) -> int:
        """Tensors that the dialect has a word for."""
        return (
            sum(1 + len(one.scales) for one in self.quantised if one.scales)
            + len(self.sorted.others)
            + len(self.sorted.companions)
        )


def read_as(store: Store, dialect: Dialect) -> Reading:
    """Read a checkpoint as a dialect has it, whatever it is."""
    found, stated, notes = sort_tensors(store.tensors, dialect), stated_in(store.configs, dialect), Notes()
    applier = Applier(dialect, stated, notes)
    pairings = {codes.stored.name: list(_pairings(codes)) for codes in found.codes}
    applier.choose_blocks(one for ones in pairings.values() for one in ones)
    quantised, misfits = [], []
    for codes in found.codes:
        scales = [applier.scale_of(one) for one in pairings[codes.stored.name]]
        misfits += [one for one in scales if isinstance(one, Misfit)]
        quantised.append(
            Quantised(
                codes.stored.name, codes.key.module, codes.fmt, _values_shape(codes),
                tuple(one for one in scales if isinstance(one, Scale)), _is_packed(codes),
            )
        )  # fmt: skip
    return Reading(dialect, found, stated, tuple(quantised), tuple(misfits), notes)


def convention_of(reading: Reading, why: str, store: Store) -> Convention:
    """The reading as what all others go by."""
    found, stated = reading.sorted, reading.stated
    return Convention(
        dialect=reading.dialect.name,
        title=reading.dialect.title,
        why=why,
        quantised=reading.quantised,
        scales=tuple(_other(stored, spelling, key.module) for stored, spelling, key in found.others),
        orphan_scales=tuple(found.orphans),
        plain=tuple(one.name for one in found.rest if is_plain(one)),
        unknown=tuple(one.name for one in found.rest if is_unexplained(one)),
        excluded=stated.excluded,
        targets=stated.targets,
        block=stated.blocks[0] if stated.blocks else None,
        block_from=stated.block_from,
        power_of_two=stated.power_of_two,
        assumptions=reading.notes.assumptions(),
        misfits=reading.misfits,
    )


def _pairings(codes: Codes) -> Iterator[Pairing]:
    """Second levels last."""
    for scale, spelled in sorted(codes.scales, key=lambda pair: pair[1][0].kind == "tensor"):
        fitting = next((one for one in spelled if scale.dtype in one.dtypes), None)
        yield Pairing(
            codes.stored.name, codes.key.module, _values_shape(codes), _is_packed(codes), scale,
            fitting or spelled[0], fitting is not None,
        )  # fmt: skip


def _values_shape(codes: Codes) -> tuple[int, ...]:
    shape = codes.stored.shape
    if codes.spelling.has_blocks_apart and len(shape) > 1:
        shape = (*shape[:-2], shape[-2] * shape[-1])
    if _is_packed(codes) and codes.stored.dtype != "F4" and shape:
        shape = (*shape[:-1], 2 * shape[-1])
    return shape


def _is_packed(codes: Codes) -> bool:
    return FORMATS[codes.fmt].bits == 4


def _other(stored: Stored, spelling: ScaleSpelling, module: str) -> Scale:
    layout = "tensor" if stored.n == 1 else "column" if spelling.kind == "input" else "line"
    return Scale(stored.name, spelling.kind, stored.dtype, stored.shape, spelling.divides, layout, module=module)
