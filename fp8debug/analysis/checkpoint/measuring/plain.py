"""Tensors in high precision: every element is asked whether it is finite, by the order of its bits."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.facts import PlainFacts
from fp8debug.analysis.checkpoint.measuring.blocks import BAND_BYTES
from fp8debug.analysis.checkpoint.measuring.lines import Lines
from fp8debug.analysis.checkpoint.measuring.progress import Progress
from fp8debug.analysis.checkpoint.measuring.sampling import Spread
from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store import Store, n_bytes_of

UnsignedArray = npt.NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True)
class FloatBits:
    """Bits of a float type: magnitudes are ordered as the integers that they are without the sign."""

    view: str
    largest: int
    """Of the largest finite number."""
    infinity: int | None
    """None: there is none."""
    nan: int | None = None
    """The one NaN, where it is -0 by its bits."""

    @property
    def magnitude(self) -> int:
        """All bits but the sign."""
        return (1 << (8 * np.dtype(self.view).itemsize - 1)) - 1


FLOATS = {
    "F64": FloatBits("<u8", 0x7FEF_FFFF_FFFF_FFFF, 0x7FF0_0000_0000_0000),
    "F32": FloatBits("<u4", 0x7F7F_FFFF, 0x7F80_0000),
    "C64": FloatBits("<u4", 0x7F7F_FFFF, 0x7F80_0000),
    "F16": FloatBits("<u2", 0x7BFF, 0x7C00),
    "BF16": FloatBits("<u2", 0x7F7F, 0x7F80),
    "F8_E4M3": FloatBits("|u1", 0x7E, None),
    "F8_E5M2": FloatBits("|u1", 0x7B, 0x7C),
    "F8_E4M3FNUZ": FloatBits("|u1", 0x7F, None, nan=0x80),
    "F8_E5M2FNUZ": FloatBits("|u1", 0x7F, None, nan=0x80),
}
_READ_AS = {"C64": "F32"}


def can_measure(stored: Stored) -> bool:
    """Whether it holds numbers that may be non-finite."""
    return stored.dtype in FLOATS


def measure_plain(store: Store, stored: Stored, progress: Progress) -> PlainFacts:
    """Count what is not finite in a tensor, element by element, and take its magnitude from a sample."""
    bits = FLOATS[stored.dtype]
    size = np.dtype(bits.view).itemsize
    parts = 2 if stored.dtype == "C64" else 1
    counter = _Counter(bits, stored.length * parts)
    sample = _Sample(_READ_AS.get(stored.dtype, stored.dtype), n_bytes_of(stored))
    first = 0
    for raw in store.chunks(stored.name, BAND_BYTES):
        elements = raw.view(bits.view)
        counter.add(elements, first)
        sample.add(elements)
        first += elements.size
        progress.add(raw.size)
    largest = np.array([counter.largest], bits.view).view(np.uint8)
    return PlainFacts(
        n=stored.n,
        n_nan=counter.n_nan,
        n_inf=counter.n_inf,
        nonfinite_lines=counter.lines.ranges(),
        amax=float(numbers(largest[:size], _READ_AS.get(stored.dtype, stored.dtype))[0]),
        rms=sample.rms,
    )


class _Counter:
    """Non-finite elements, and the bits of the largest finite magnitude."""

    def __init__(self, bits: FloatBits, length: int) -> None:
        self.n_nan = self.n_inf = self.largest = 0
        self.lines = Lines(length)
        self._bits = bits
        self._buffer = np.empty(BAND_BYTES // np.dtype(bits.view).itemsize, bits.view)

    def add(self, elements: UnsignedArray, first: int) -> None:
        if not elements.size:
            return
        bits, kind = self._bits, elements.dtype.type
        magnitudes = np.bitwise_and(elements, kind(bits.magnitude), out=self._buffer[: elements.size])
        if bits.nan is not None:
            self._add_odd(elements == kind(bits.nan), magnitudes, first)
        largest = int(magnitudes.max())
        if largest > bits.largest:
            odd = magnitudes > kind(bits.largest)
            self._add_odd(odd, magnitudes, first)
            magnitudes[odd] = 0
            largest = int(magnitudes.max())
        self.largest = max(self.largest, largest)

    def _add_odd(self, odd: npt.NDArray[np.bool_], magnitudes: UnsignedArray, first: int) -> None:
        places = np.flatnonzero(odd)
        if places.size:
            infinite = 0 if self._bits.infinity is None else np.count_nonzero(magnitudes[places] == self._bits.infinity)
            self.n_inf += int(infinite)
            self.n_nan += places.size - int(infinite)
            self.lines.add(places, first)


class _Sample:
    """Squares of the finite values of a sample."""

    def __init__(self, dtype: str, n_bytes: int) -> None:
        self._dtype, self._spread = dtype, Spread(n_bytes)
        self._sum, self._n = 0.0, 0

    def add(self, elements: UnsignedArray) -> None:
        piece = elements[self._spread.piece(elements.size)]
        if piece.size:
            values = numbers(piece.view(np.uint8), self._dtype).astype(np.float64)
            total = float(np.einsum("i,i->", values, values))
            if not np.isfinite(total):
                values = values[np.isfinite(values)]
                total = float(np.einsum("i,i->", values, values))
            self._sum += total
            self._n += values.size

    @property
    def rms(self) -> float:
        return sqrt(self._sum / self._n) if self._n else 0.0


def lines_nonfinite(store: Store, stored: Stored, first: int, last: int) -> npt.NDArray[np.intp]:
    """How many elements of each of some lines are not finite, int (last - first,).

    Args:
        store: where it lies.
        stored: a tensor of one of FLOATS.
        first: number of the first line.
        last: of the last one, exclusive.
    """
    bits = FLOATS[stored.dtype]
    width = n_bytes_of(stored) // stored.lines
    counts = np.zeros(last - first, np.intp)
    for line in range(first, last):
        elements = store.read(stored.name, line * width, (line + 1) * width).view(bits.view)
        kind = elements.dtype.type
        odd = (elements & kind(bits.magnitude)) > kind(bits.largest)
        if bits.nan is not None:
            odd |= elements == kind(bits.nan)
        counts[line - first] = np.count_nonzero(odd)
    return counts
