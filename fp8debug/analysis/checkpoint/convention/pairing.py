"""Codes and a scale that stands beside them: what is known before anybody asks whether they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fp8debug.analysis.checkpoint.convention.sorting import Codes
from fp8debug.analysis.checkpoint.dialects import ScaleSpelling
from fp8debug.analysis.checkpoint.dialects.dialect import Pair
from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.formats import FORMATS

_NUMBERS = ("F32", "BF16", "F16", "F64")


@dataclass(frozen=True, slots=True)
class Pairing:
    """One scale of one tensor of codes."""

    tensor: str
    module: str
    param: str
    shape: tuple[int, ...]
    """Of the values."""
    scale: Stored
    spelling: ScaleSpelling
    takes_dtype: bool
    """Whether the dialect writes such scales in this dtype."""
    own_block: Pair | None
    """Block size that the header states for these codes alone."""
    may_be_swizzled: bool
    """Whether such a grid is written in the order of tensor cores; one that is not padded to whole tiles is not."""

    @property
    def is_exponents(self) -> bool:
        """Whether its bytes can only be E8M0."""
        return self.scale.dtype in ("U8", "F8_E8M0")

    @property
    def is_readable(self) -> bool:
        """Whether its dtype is one of scales."""
        return self.takes_dtype or self.scale.dtype in _NUMBERS or self.is_exponents


def pairings_of(codes: Codes) -> tuple[list[Pairing], list[Stored]]:
    """One for each scale that is applied, second levels last; and scales beside one that says the same."""
    applied: dict[str, Pairing] = {}
    spare = []
    for one in sorted(_pairings(codes), key=lambda one: (one.spelling.kind == "tensor", not one.takes_dtype)):
        if one.spelling.kind in applied:
            spare.append(one.scale)
        else:
            applied[one.spelling.kind] = one
    return list(applied.values()), spare


def _pairings(codes: Codes) -> Iterator[Pairing]:
    shape, entry = values_shape(codes), codes.entry
    block = entry.block if entry is not None and not _is_whole(entry.block, shape) else None
    for scale, spelled in codes.scales:
        fitting = next((one for one in spelled if scale.dtype in one.dtypes), None)
        spelling = fitting or spelled[0]
        may_be = spelling.is_swizzled or (entry is not None and entry.is_swizzled and spelling.kind == "weight")
        yield Pairing(
            codes.stored.name, codes.key.module, codes.key.param, shape, scale, spelling, fitting is not None, block,
            may_be,
        )  # fmt: skip


def _is_whole(block: Pair | None, shape: tuple[int, ...]) -> bool:
    """Whether it takes whole lines: then the number of scales says how many lines share one."""
    return block is not None and len(shape) > 0 and block[1] == shape[-1]


def is_packed(codes: Codes) -> bool:
    """Whether a byte holds two codes."""
    return FORMATS[codes.fmt].bits == 4


def values_shape(codes: Codes) -> tuple[int, ...]:
    """Shape of the values, packing undone."""
    shape = codes.stored.shape
    if codes.spelling.has_blocks_apart and len(shape) > 1:
        shape = (*shape[:-2], shape[-2] * shape[-1])
    if is_packed(codes) and codes.stored.dtype != "F4" and shape:
        shape = (*shape[:-1], 2 * shape[-1])
    return shape
