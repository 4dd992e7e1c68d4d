"""Which tensors hold codes, which are scales and of what, by the names and dtypes of a dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fp8debug.analysis.checkpoint.convention.naming import Key, Tail, tails
from fp8debug.analysis.checkpoint.dialects import CodeSpelling, Dialect, ScaleSpelling
from fp8debug.analysis.checkpoint.records import Stored

OF_CODES = ("weight", "tensor")
"""Kinds of scales that codes are multiplied with or divided by."""
BYTES = ("U8", "I8")
"""dtypes that are codes only where a scale stands beside them."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A tensor of codes as a dialect spells it."""

    stored: Stored
    key: Key
    spelling: CodeSpelling
    fmt: str
    scales: list[tuple[Stored, tuple[ScaleSpelling, ...]]] = field(default_factory=list)
    """Beside each scale the spellings of its tail, whatever dtypes these ask for."""


@dataclass(slots=True)
class Sorted:
    """All tensors of a checkpoint, each in one place."""

    codes: list[Codes] = field(default_factory=list)
    others: list[tuple[Stored, ScaleSpelling, Key]] = field(default_factory=list)
    """Scales of anything but stored codes."""
    orphans: list[str] = field(default_factory=list)
    companions: list[str] = field(default_factory=list)
    rest: list[Stored] = field(default_factory=list)


def sort_tensors(tensors: Mapping[str, Stored], dialect: Dialect) -> Sorted:
    """Say of every tensor what it is to a dialect."""
    result = Sorted()
    possible = {codes.stored.name: codes for codes in _possible_codes(tensors, dialect)}
    by_key = {codes.key: codes for codes in reversed(possible.values())}
    known_tails = tails(spelling.tail for spelling in dialect.scales)
    spellings = {t.text: tuple(one for one in dialect.scales if one.tail == t.text) for t in known_tails}
    companions = tails(dialect.companions)
    for name, stored in tensors.items():
        if not _is_scale(stored, known_tails, spellings, by_key, tensors, result) and name not in possible:
            if any(tail.key(name) for tail in companions):
                result.companions.append(name)
            else:
                result.rest.append(stored)
    scales = {scale.name for codes in possible.values() for scale, _ in codes.scales} | {
        *result.orphans, *(stored.name for stored, _, _ in result.others)
    }  # fmt: skip
    for name, codes in possible.items():
        if name in scales:
            continue
        if codes.stored.dtype in BYTES and not _has_scale(codes):
            result.rest.append(codes.stored)
            result.orphans += (scale.name for scale, _ in codes.scales)
        else:
            result.codes.append(codes)
    return result


def _possible_codes(tensors: Mapping[str, Stored], dialect: Dialect) -> Iterator[Codes]:
    spelled = [(Tail(one.tail), one) for one in dialect.codes]
    spelled.sort(key=lambda pair: -pair[0].n_literal)
    dtypes = dialect.code_dtypes
    for name, stored in tensors.items():
        if stored.dtype not in dtypes:
            continue
        for tail, spelling in spelled:
            key = tail.key(name)
            if key is not None and stored.dtype in spelling.formats:
                yield Codes(stored, key, spelling, spelling.formats[stored.dtype])
                break


def _is_scale(
    stored: Stored,
    known: list[Tail],
    spellings: Mapping[str, tuple[ScaleSpelling, ...]],
    by_key: Mapping[Key, Codes],
    tensors: Mapping[str, Stored],
    result: Sorted,
) -> bool:
    """Put the tensor where it belongs when it is a scale, and say whether it is one."""
    for tail in known:
        key = tail.key(stored.name)
        if key is None:
            continue
        fitting = spellings[tail.text]
        if fitting[0].kind not in OF_CODES:
            result.others.append((stored, fitting[0], key))
            return True
        owner = by_key.get(key)
        if owner is not None and owner.stored is not stored:
            owner.scales.append((stored, fitting))
            return True
        if tail.is_telling or (key.param == "weight" and (key.plain_name in tensors or tail.n_literal > 0)):
            if stored.dtype not in ("I32", "I64", "BOOL"):
                result.orphans.append(stored.name)
                return True
    return False


def _has_scale(codes: Codes) -> bool:
    """Whether one of its scales is of a dtype that scales of such codes have."""
    return any(
        spelling.kind == "weight" and scale.dtype in spelling.dtypes and scale.dtype in ("F8_E4M3", "F8_E8M0", "U8")
        for scale, spelled in codes.scales
        for spelling in spelled
    )
