"""Codes of small formats, counted a band at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.facts import Int64Array
from fp8debug.analysis.checkpoint.measuring.blocks import BAND_BYTES
from fp8debug.analysis.checkpoint.measuring.lines import Lines
from fp8debug.formats import Format, Uint8Array

_COUNTED_AT_A_TIME = 1 << 16  # numpy makes 64-bit numbers of them first


def counted(codes: Uint8Array, n_codes: int) -> Int64Array:
    """How often each code occurs: uint8 (n,) to int64 (n_codes,)."""
    found = np.zeros(n_codes, np.int64)
    for first in range(0, codes.size, _COUNTED_AT_A_TIME):
        found += np.bincount(codes[first : first + _COUNTED_AT_A_TIME], minlength=n_codes)
    return found


class Counts:
    """What all codes of a tensor have in common.

    Each pass over a band that is in the cache takes a twentieth of the time that reading it takes, so there are many
    simple ones; what is rare is looked for only where the largest code says that it may be there.

    Args:
        fmt: of the codes.
        is_packed: two codes of 4 bits in a byte.
        length: bytes of a line.
    """

    def __init__(self, fmt: Format, is_packed: bool, length: int) -> None:
        self.n_nan = self.n_zero = self.n_largest = self.largest = 0
        self.nan_lines = Lines(length)
        self._fmt, self._is_packed = fmt, is_packed
        self._magnitudes = np.empty(BAND_BYTES, np.uint8)
        self._others = np.empty(BAND_BYTES, np.uint8)
        self._flags = np.empty(0, np.uint8)

    def add(self, raw: Uint8Array, first: int) -> Uint8Array:
        """Count a band.

        Args:
            raw: bytes, 1-d.
            first: number of the first one in the tensor.

        Returns:
            Magnitudes of the codes, NaN as 0: of packed ones the larger of each two. Valid until the next call.
        """
        if raw.size > self._magnitudes.size:
            self._magnitudes, self._others = np.empty((2, raw.size), np.uint8)
        magnitudes, others = self._magnitudes[: raw.size], self._others[: raw.size]
        if self._is_packed:
            return self._add_packed(raw, magnitudes, others)
        fmt = self._fmt
        np.bitwise_and(raw, fmt.sign_bit - 1, out=magnitudes)
        n_zero = raw.size - int(np.count_nonzero(magnitudes))
        if n_zero and fmt.nan_code & fmt.sign_bit:  # FNUZ: NaN is where -0 would be
            n_nan = n_zero - (raw.size - int(np.count_nonzero(raw)))
            n_zero -= n_nan
            if n_nan:
                self._add_nan(raw == fmt.nan_code, first)
        largest = int(magnitudes.max())
        if largest > fmt.max_code:
            is_nan = magnitudes > fmt.max_code
            self._add_nan(is_nan, first)
            magnitudes[is_nan] = 0
            largest = int(magnitudes.max())
        self.n_zero += n_zero
        self._add_largest(largest, magnitudes, others)
        return magnitudes

    def _add_nan(self, is_nan: npt.NDArray[np.bool_], first: int) -> None:
        places = np.flatnonzero(is_nan)
        self.n_nan += places.size
        self.nan_lines.add(places, first)

    def _add_largest(self, largest: int, magnitudes: Uint8Array, flags: Uint8Array) -> None:
        if largest == self._fmt.max_code:
            equal = np.equal(magnitudes, largest, out=flags.view(np.bool_))
            self.n_largest += int(np.count_nonzero(equal))
        self.largest = max(self.largest, largest)

    def _add_packed(self, raw: Uint8Array, low: Uint8Array, high: Uint8Array) -> Uint8Array:
        if raw.size > self._flags.size:
            self._flags = np.empty(raw.size, np.uint8)
        flags = self._flags[: raw.size]
        np.right_shift(raw, 4, out=high)
        for half, source in ((low, raw), (high, high)):
            np.bitwise_and(source, self._fmt.sign_bit - 1, out=half)
            self.n_zero += raw.size - int(np.count_nonzero(half))
            self._add_largest(int(half.max()), half, flags)
        return np.maximum(low, high, out=low)
