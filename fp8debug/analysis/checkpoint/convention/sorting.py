"""Which tensors hold codes, which are scales and of what, by the names and dtypes of a dialect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fp8debug.analysis.checkpoint.convention.header import Entry
from fp8debug.analysis.checkpoint.convention.naming import Key, Tail, Tails
from fp8debug.analysis.checkpoint.dialects import CodeSpelling, Dialect, ScaleSpelling
from fp8debug.analysis.checkpoint.records import Stored

OF_CODES = ("weight", "tensor")
"""Kinds of scales that codes are multiplied with or divided by."""
INTEGERS = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64")
_BYTES = ("U8", "I8")
"""dtypes that are 4-bit codes only where a scale of such codes stands beside them."""
_SCALES_OF_PAIRS = ("F8_E4M3", "F8_E8M0", "U8")
"""dtypes of the scales of 4-bit codes."""
_INTEGERS_TOLD = "integers"
_PAIRS_A_SCALE = 8
"""Bytes of NVFP4 codes that share a scale."""
_COUNTS = ("I32", "I64", "BOOL")
"""dtypes that no scale has."""


@dataclass(frozen=True, slots=True)
class Codes:
    """A tensor of codes as a dialect spells it."""

    stored: Stored
    key: Key
    spelling: CodeSpelling
    fmt: str
    entry: Entry | None = None
    """What the file's header says of it."""
    scales: list[tuple[Stored, tuple[ScaleSpelling, ...]]] = field(default_factory=list)
    """Beside each scale the spellings of its tail, whatever dtypes these ask for."""


@dataclass(slots=True)
class Sorted:
    """All tensors of a checkpoint, each in one place."""

    codes: list[Codes] = field(default_factory=list)
    others: list[tuple[Stored, ScaleSpelling, Key]] = field(default_factory=list)
    """Scales of anything but stored codes."""
    orphans: list[str] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)
    """Codes and scales that are not read, by name, and what they are."""
    companions: list[str] = field(default_factory=list)
    rest: list[Stored] = field(default_factory=list)


def sort_tensors(tensors: Mapping[str, Stored], dialect: Dialect, entries: Mapping[str, Entry]) -> Sorted:
    """Say of every tensor what it is to a dialect.

    Args:
        tensors: by name.
        dialect: whose spellings count.
        entries: what the header says of parameters, by their names; see `header`.
    """
    return _Sorting(tensors, dialect, entries).run()


class _Sorting:
    def __init__(self, tensors: Mapping[str, Stored], dialect: Dialect, entries: Mapping[str, Entry]) -> None:
        companions = Tails(dialect.companions)
        self._spellings: dict[str, tuple[ScaleSpelling, ...]] = {}
        for one in dialect.scales:
            self._spellings[one.tail] = (*self._spellings.get(one.tail, ()), one)
        self._scale_tails = Tails(self._spellings)
        self._result = Sorted()
        self._result.companions += (name for name in tensors if companions.matches(name))
        left = set(tensors).difference(self._result.companions)
        self._tensors = {name: stored for name, stored in tensors.items() if name in left}
        named = list(_named_as_codes(self._tensors, dialect))
        self._possible = {
            stored.name: _codes(stored, key, spelling, entries.get(key.plain_name))
            for stored, key, spelling in named
            if stored.dtype in spelling.formats
        }
        self._owners = {codes.key: codes for codes in reversed(self._possible.values())}
        self._named = {key: stored for stored, key, _ in reversed(named)}

    def run(self) -> Sorted:
        result = self._result
        taken = {name for name, stored in self._tensors.items() if self._is_scale(stored)}
        for codes in self._possible.values():
            if codes.stored.name not in taken:
                taken.add(codes.stored.name)
                self._put(codes)
        found = {stored.name for stored in result.rest} | taken | set(result.unread)
        result.rest += (stored for name, stored in self._tensors.items() if name not in found)
        return result

    def _is_scale(self, stored: Stored) -> bool:
        """Put the tensor where it belongs when it is a scale, and say whether it is one."""
        for tail, key in self._scale_tails.matches(stored.name):
            spelled = self._spellings[tail.text]
            if spelled[0].kind not in OF_CODES:
                self._result.others += ((stored, one, key) for one in spelled)
                return True
            owner = self._owners.get(key)
            if owner is not None and owner.stored is not stored:
                owner.scales.append((stored, spelled))
                return True
            if self._is_scale_of_something_else(stored, tail, key):
                return True
        return False

    def _is_scale_of_something_else(self, stored: Stored, tail: Tail, key: Key) -> bool:
        beside = self._named.get(key)
        if beside is not None and beside is not stored and beside.dtype in INTEGERS:
            self._result.unread |= {beside.name: _INTEGERS_TOLD, stored.name: _INTEGERS_TOLD}
            return True
        if tail.is_telling(key) and stored.dtype not in _COUNTS:
            self._result.orphans.append(stored.name)
            return True
        return False

    def _put(self, codes: Codes) -> None:
        order = list(self._spellings)
        codes.scales.sort(key=lambda pair: order.index(pair[1][0].tail))
        is_unknown = codes.entry is not None and codes.entry.fmt == ""
        if not is_unknown and (codes.stored.dtype not in _BYTES or _are_pairs(codes)):
            if _is_packed_down(codes):
                self._leave(codes, "4-bit codes that are packed along the lines of a matrix, not along its columns")
            else:
                self._result.codes.append(codes)
        elif codes.scales:
            self._leave(codes, _INTEGERS_TOLD)
        else:
            self._result.rest.append(codes.stored)

    def _leave(self, codes: Codes, what: str) -> None:
        self._result.unread |= dict.fromkeys([codes.stored.name, *(scale.name for scale, _ in codes.scales)], what)


def _named_as_codes(tensors: Mapping[str, Stored], dialect: Dialect) -> Iterator[tuple[Stored, Key, CodeSpelling]]:
    """Tensors that a dialect's codes may be named like; of those of a dtype of codes, by the tail that has it."""
    tails = Tails(one.tail for one in dialect.codes)
    spellings = {one.tail: one for one in dialect.codes}
    for name, stored in tensors.items():
        matches = [(spellings[tail.text], key) for tail, key in tails.matches(name)]
        fitting = [pair for pair in matches if stored.dtype in pair[0].formats]
        for spelling, key in (fitting or matches)[:1]:
            yield stored, key, spelling


def _codes(stored: Stored, key: Key, spelling: CodeSpelling, entry: Entry | None) -> Codes:
    said = entry.fmt if entry is not None else None
    return Codes(stored, key, spelling, said or spelling.formats[stored.dtype], entry)


def _are_pairs(codes: Codes) -> bool:
    """Whether bytes are pairs of codes: a scale that only such codes have stands beside them."""
    return any(
        spelling.kind == "weight" and scale.dtype in spelling.dtypes and scale.dtype in _SCALES_OF_PAIRS
        for scale, spelled in codes.scales
        for spelling in spelled
    )


def _is_packed_down(codes: Codes) -> bool:
    """Whether two codes in a byte are neighbours in a column: NVFP4 experts as [E, K / 2, N] with [E, K / 16, N]."""
    shape = codes.stored.shape
    if codes.stored.dtype not in _BYTES or len(shape) < 3:
        return False
    wanted = (*shape[:-2], shape[-2] // _PAIRS_A_SCALE, shape[-1])
    usual = (*shape[:-1], shape[-1] // _PAIRS_A_SCALE)
    shapes = [scale.shape for scale, spelled in codes.scales if spelled[0].kind == "weight"]
    return wanted in shapes and usual not in shapes
