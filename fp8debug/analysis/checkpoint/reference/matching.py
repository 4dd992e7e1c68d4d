"""Which tensors of a reference are the same as one of a checkpoint: by name, or as parts of fused and stacked ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fp8debug.analysis.checkpoint.records import Convention, Quantised, Stored
from fp8debug.analysis.checkpoint.reference.lines import JoinedLines, Lines, Part, PlainLines, TransposedLines, lines_of
from fp8debug.analysis.checkpoint.reference.naming import expert_key, fused_of, key_of, parts_of, renamed, stem_of
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.formats import FORMATS

_FLOATS = ("F64", "F32", "F16", "BF16")
Tensor = Quantised | Stored


@dataclass(frozen=True, slots=True)
class Source:
    """Lines of a tensor of the reference."""

    tensor: Tensor
    first: int
    last: int
    is_transposed: bool = False
    length: int | None = None
    """To see it with lines of that length; None: its own."""


@dataclass(frozen=True, slots=True)
class Match:
    """A tensor of this checkpoint and where the reference has it."""

    tensor: Tensor
    sources: tuple[Source, ...]
    lines: int
    """Lines that both have."""
    how: str
    """same | renamed | fused | transposed | rows | reshaped"""

    @property
    def reference_name(self) -> str:
        """Names in the reference; of many, the first and how many more."""
        names = list(dict.fromkeys(source.tensor.name for source in self.sources))
        if len(names) <= 3:
            return " + ".join(names)
        return f"{names[0]} and {len(names) - 1} more"


@dataclass(frozen=True, slots=True)
class Matching:
    """All tensors of two checkpoints."""

    matches: tuple[Match, ...]
    misshapen: tuple[tuple[Tensor, Tensor], ...]
    """Equal names whose shapes cannot be brought together: ours, the reference's."""
    missing: tuple[str, ...]
    extra: tuple[str, ...]


def tensors_of(convention: Convention, store: Store) -> tuple[Tensor, ...]:
    """Tensors that have values: the quantised ones whose codes can be read, and plain ones of floats."""
    plain = (store.tensors[name] for name in convention.plain if name in store.tensors)
    return (
        *(one for one in convention.quantised if one.fmt in FORMATS),
        *(stored for stored in plain if stored.dtype in _FLOATS),
    )


def match(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> Matching:
    """Find each of our tensors among those of the reference."""
    our_keys, their_keys = _by_key(ours), _by_key(theirs)
    left, right = renamed(our_keys, their_keys)
    ours_by_name = {left[key]: tensor for key, tensor in our_keys.items()}
    theirs_by_name = {right[key]: tensor for key, tensor in their_keys.items()}
    finder = _Finder(ours_by_name, theirs_by_name)
    matches, misshapen, missing = [], [], []
    for name, tensor in ours_by_name.items():
        found = finder.found(name, tensor)
        if found is not None:
            matches.append(found)
        elif name in theirs_by_name:
            misshapen.append((tensor, theirs_by_name[name]))
        else:
            missing.append(tensor.name)
    used = {source.tensor.name for one in matches for source in one.sources} | {other.name for _, other in misshapen}
    extra = tuple(tensor.name for tensor in theirs if tensor.name not in used)
    return Matching(tuple(matches), tuple(misshapen), tuple(missing), extra)


def turned(found: Match) -> Match | None:
    """The same match with the reference taken as transposed; None: it is no square plain matrix."""
    tensor, source = found.tensor, found.sources[0]
    is_square = len(tensor.shape) == 2 and tensor.shape[0] == tensor.shape[1]
    if len(found.sources) > 1 or not is_square or source.tensor.shape != tensor.shape:
        return None
    if not isinstance(source.tensor, Stored):
        return None
    return replace(found, sources=(replace(source, is_transposed=True),), how="transposed")


def pair_of(found: Match, store: Store, reference_store: Store) -> Pair:
    """The tensors of a match, ready to be read; scales of both are read now."""
    parts = [Part(_lines(reference_store, one), one.first, one.last) for one in found.sources]
    alone = len(parts) == 1 and (parts[0].first, parts[0].last) == (0, parts[0].whole.lines)
    lines = parts[0].whole if alone else JoinedLines(parts)
    return Pair(store, found.tensor, reference_store, found.sources[0].tensor, lines, found.lines)


def _lines(store: Store, source: Source) -> Lines:
    tensor = source.tensor
    if isinstance(tensor, Stored) and source.is_transposed:
        return TransposedLines(store, tensor)
    if isinstance(tensor, Stored) and source.length is not None:
        return PlainLines(store, tensor, source.length)
    return lines_of(store, tensor)


def _by_key(tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Tensors by key; by name where two have the same."""
    by_key: dict[str, Tensor] = {}
    for tensor in tensors:
        key = key_of(tensor)
        by_key[tensor.name if key in by_key else key] = tensor
    return by_key


class _Finder:
    """Finds tensors of this checkpoint in a reference; keys of both are already spelt alike."""

    def __init__(self, ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
        self._theirs = theirs
        self._our_matrices, self._their_matrices = _matrices(ours), _matrices(theirs)

    def found(self, key: str, tensor: Tensor) -> Match | None:
        """Where the reference has it; None: nowhere, or in a shape that cannot be compared."""
        if key in self._theirs:
            return _as_one(tensor, self._theirs[key])
        if key_is_stack(key, tensor):
            each = [self._matrix(expert_key(key, expert), tensor) for expert in range(tensor.shape[0])]
        else:
            each = [self._matrix(key, tensor)]
        sources = [source for one in each if one is not None for source in one]
        if any(one is None for one in each) or not sources:
            return None
        return Match(tensor, tuple(sources), tensor.lines, "fused")

    def _matrix(self, key: str, tensor: Tensor) -> list[Source] | None:
        """Lines of the reference that are one matrix of ours: as such, as several, or within a fused one."""
        rows = tensor.shape[-2] if len(tensor.shape) > 1 else 1
        for keys in ((key,), parts_of(key)):
            parts = [self._their_matrices[part] for part in keys if part in self._their_matrices]
            fits = sum(one.last - one.first for one in parts) == rows
            if parts and len(parts) == len(keys) and fits and all(_length(one) == tensor.length for one in parts):
                return parts
        fused = fused_of(key)
        if fused is None or fused[0] not in self._their_matrices or any(k not in self._our_matrices for k in fused[1]):
            return None
        whole = self._their_matrices[fused[0]]
        offset = sum(self._our_matrices[k].last - self._our_matrices[k].first for k in fused[1])
        if _length(whole) != tensor.length or whole.first + offset + rows > whole.last:
            return None
        return [Source(whole.tensor, whole.first + offset, whole.first + offset + rows)]


def key_is_stack(key: str, tensor: Tensor) -> bool:
    """Whether a tensor is a stack of experts."""
    return len(tensor.shape) == 3 and "expert" in key.rpartition(".")[0].rpartition(".")[2]


def _matrices(tensors: Mapping[str, Tensor]) -> dict[str, Source]:
    """All matrices by key, those of stacks one by one."""
    found = {}
    for key, tensor in tensors.items():
        if key_is_stack(key, tensor):
            rows = tensor.shape[1]
            for expert in range(tensor.shape[0]):
                found[expert_key(key, expert)] = Source(tensor, expert * rows, (expert + 1) * rows)
        elif len(tensor.shape) == 2:
            found[key] = Source(tensor, 0, tensor.lines)
    return found


def _length(source: Source) -> int:
    return source.tensor.length


def _as_one(tensor: Tensor, other: Tensor) -> Match | None:
    """A match of two tensors of one name; None: their shapes cannot be brought together."""
    how = "same" if stem_of(tensor) == stem_of(other) else "renamed"
    whole = Source(other, 0, other.lines)
    if tensor.shape == other.shape or (tensor.lines, tensor.length) == (other.lines, other.length):
        return Match(tensor, (whole,), tensor.lines, how)
    is_plain = isinstance(other, Stored)
    if len(tensor.shape) == len(other.shape) == 2:
        if tensor.shape == other.shape[::-1]:
            turned = Source(other, 0, other.length, is_transposed=True)
            return Match(tensor, (turned,), tensor.lines, "transposed") if is_plain else None
        if tensor.length == other.length:
            return Match(tensor, (whole,), min(tensor.lines, other.lines), "rows")
        return None
    squeezed = [[size for size in one.shape if size != 1] for one in (tensor, other)]
    is_same = squeezed[0] == squeezed[1] or (tensor.n == other.n and tensor.shape[:1] == other.shape[:1])
    if is_plain and is_same and tensor.n == other.n and tensor.length and len(tensor.shape) != len(other.shape):
        seen = Source(other, 0, tensor.lines, length=tensor.length)
        return Match(tensor, (seen,), tensor.lines, "reshaped")
    return None
