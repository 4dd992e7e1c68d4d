"""Lines of a tensor, quantised or plain, read from anywhere in it: what a comparison takes its two sides from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from fp8debug.analysis.checkpoint.numbers import numbers, unpacked
from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.store import Store, n_bytes_of
from fp8debug.analysis.checkpoint.values import Dequantiser
from fp8debug.formats import FORMATS, Float32Array, decode


class Lines(ABC):
    """A matrix of values that are read when they are asked for.

    Attributes:
        lines, length: its shape; stacked matrices lie one after another.
    """

    lines: int
    length: int

    @abstractmethod
    def values(self, first: int, last: int) -> Float32Array:
        """Lines first to last (exclusive), float32 (lines, length)."""


class PlainLines(Lines):
    """A tensor in high precision.

    Args:
        store: where it lies.
        stored: the tensor.
        length: elements of a line; None: of its last axis.
    """

    def __init__(self, store: Store, stored: Stored, length: int | None = None) -> None:
        self.length = stored.length if length is None else length
        self.lines = stored.n // self.length if self.length else stored.lines
        self._store, self._stored = store, stored
        self._line_bytes = n_bytes_of(stored) // max(1, self.lines)

    def values(self, first: int, last: int) -> Float32Array:
        """As in `Lines`."""
        raw = self._store.read(self._stored.name, first * self._line_bytes, last * self._line_bytes)
        return numbers(raw, self._stored.dtype).reshape(last - first, self.length)


class TransposedLines(Lines):
    """A plain matrix that is stored columns first: its lines are read as strips of the stored ones."""

    def __init__(self, store: Store, stored: Stored) -> None:
        self.length, self.lines = stored.shape
        self._store, self._stored = store, stored
        self._number_bytes = n_bytes_of(stored) // max(1, stored.n)

    def values(self, first: int, last: int) -> Float32Array:
        """As in `Lines`."""
        size, width = self._number_bytes, self.lines
        strips = [
            self._store.read(self._stored.name, (row * width + first) * size, (row * width + last) * size)
            for row in range(self.length)
        ]
        stacked = numbers(np.concatenate(strips), self._stored.dtype).reshape(self.length, last - first)
        return np.ascontiguousarray(stacked.T)


class QuantisedLines(Lines):
    """Codes and scales.

    Args:
        store: where they lie.
        quantised: how they are read.
        grids: other factors than those stored, by name of the scale.
    """

    def __init__(self, store: Store, quantised: Quantised, grids: dict[str, Float32Array] | None = None) -> None:
        self.lines, self.length = quantised.lines, quantised.length
        self._store, self._quantised = store, quantised
        self._line_bytes = n_bytes_of(store.tensors[quantised.name]) // max(1, self.lines)
        self._dequantiser = Dequantiser(store, quantised, grids)

    def codes(self, first: int, last: int) -> Float32Array:
        """Values of the codes, no scale applied."""
        raw = self._store.read(self._quantised.name, first * self._line_bytes, last * self._line_bytes)
        raw = raw.reshape(last - first, self._line_bytes)
        codes = unpacked(raw, self._quantised.is_high_first) if self._quantised.is_packed else raw
        return decode(codes, FORMATS[self._quantised.fmt])

    def factors(self, first: int, last: int) -> Float32Array:
        """What these are multiplied with, broadcastable to (last - first, length)."""
        return self._dequantiser.factors(first, last)

    def values(self, first: int, last: int) -> Float32Array:
        """As in `Lines`."""
        with np.errstate(all="ignore"):
            return self.codes(first, last) * self.factors(first, last)


@dataclass(frozen=True, slots=True)
class Part:
    """Some lines of a tensor: a part of a fused or stacked one, or all of it."""

    whole: Lines
    first: int
    last: int


class JoinedLines(Lines):
    """Parts of tensors, one after another."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.length = parts[0].whole.length
        self._parts = tuple(parts)
        self._ends = tuple(accumulate(part.last - part.first for part in parts))
        self.lines = self._ends[-1]

    def values(self, first: int, last: int) -> Float32Array:
        """As in `Lines`."""
        pieces = []
        while first < last:
            index = bisect_right(self._ends, first)
            part, end = self._parts[index], min(last, self._ends[index])
            offset = part.last - self._ends[index]
            pieces.append(part.whole.values(first + offset, end + offset))
            first = end
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def lines_of(
    store: Store, tensor: Quantised | Stored, grids: dict[str, Float32Array] | None = None
) -> QuantisedLines | PlainLines:
    """The lines of a tensor of a checkpoint."""
    return QuantisedLines(store, tensor, grids) if isinstance(tensor, Quantised) else PlainLines(store, tensor)
