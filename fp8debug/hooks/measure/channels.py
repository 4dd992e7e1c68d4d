"""How a tensor's channels are spread: amax, SQNR and underflow of each token and each feature, counted in bins.

A channel is one index along an axis of the tensor seen as (rows, last dimension). Bins are fixed, so that those of
different records add up. Sums are over finite elements; what is not finite counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fp8debug.formats import Float32Array, Format
from fp8debug.hooks.measure.strips import Strip

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
Uint32Array = npt.NDArray[np.uint32]

AXES = {
    "x": ("token", "K"),
    "w": ("N", "K"),
    "dy": ("token", "N"),
    "y": ("token", "N"),
    "dx": ("token", "K"),
    "dw": ("N", "K"),
    "m": ("N", "K"),
    "v": ("N", "K"),
    "key": ("token", "K"),
    "value": ("token", "N"),
}
"""Names of a tensor's rows and columns."""

_QUARTER_OCTAVES = 2.0 ** np.array([0.25, 0.5, 0.75])  # no float32 is as near to one of them as its float64 rounding


@dataclass(frozen=True, slots=True)
class AxisSums:
    """What is summed for each channel of an axis; `of_requests` has one row a (scale, format)."""

    amax: Float32Array
    """(channels,)"""
    n_nonzero: Uint32Array
    x2: Float64Array
    n_kept: Uint32Array
    """(requests, channels): non-zero elements that do not become zero."""
    err2: Float64Array
    """(requests, channels)"""

    @classmethod
    def zeros(cls, n_channels: int, n_requests: int) -> AxisSums:
        """Nothing seen yet."""
        both = (n_requests, n_channels)
        return cls(
            np.zeros(n_channels, np.float32),
            np.zeros(n_channels, np.uint32),
            np.zeros(n_channels),
            np.zeros(both, np.uint32),
            np.zeros(both),
        )

    def part(self, start: int, stop: int) -> AxisSums:
        """Some channels, sharing memory."""
        a, b = self.n_kept[:, start:stop], self.err2[:, start:stop]
        return AxisSums(self.amax[start:stop], self.n_nonzero[start:stop], self.x2[start:stop], a, b)


class ChannelEngine(Protocol):
    """The part of `Engine` that is needed here."""

    def add_channels(
        self, x: Float32Array, requests: Sequence[tuple[np.float32, Format]], lines: AxisSums, columns: AxisSums
    ) -> None:
        """Add an FP32 matrix, (lines, columns), to the sums of its lines and columns, for each (scale, format)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The measured cells of a row of `channels`, in the schema's order; meanings as there."""

    n_channels: int
    n_zero: int
    n_exact: int | None
    bins: Int64Array
    counts: Int64Array
    worst_channel: int | None
    worst_value: float | None


class ChannelMeter:
    """Collects all channels over the row strips of one tensor.

    Args:
        n_lines: lines of all strips together.
        length: elements of a line.
        requests: (scale, format) of the per-tensor recipes.
    """

    def __init__(
        self, engine: ChannelEngine, n_lines: int, length: int, requests: Sequence[tuple[np.float32, Format]]
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._length = length
        self._lines = AxisSums.zeros(n_lines, len(requests))
        self._columns = AxisSums.zeros(0, 0)
        self._numbers: list[Int64Array] = []

    def add(self, strip: Strip) -> None:
        """Take one strip."""
        if not self._numbers:
            self._columns = AxisSums.zeros(strip.x.shape[1], len(self._requests))
        start = sum(map(len, self._numbers))
        self._numbers.append(np.arange(strip.first, strip.first + len(strip.x)))
        self._engine.add_channels(strip.x, self._requests, self._lines.part(start, start + len(strip.x)), self._columns)

    def axes(self) -> tuple[tuple[AxisSums, Int64Array], tuple[AxisSums, Int64Array]]:
        """Sums and index numbers of the tensor's rows, then of its columns, after the last strip."""
        columns = self._columns.part(0, self._length)
        return (self._lines, np.concatenate(self._numbers)), (columns, np.arange(self._length))


def amax_spread(sums: AxisSums, numbers: Int64Array) -> Spread:
    """Quarter octaves: floor(4 log2 amax), decided from the bits."""
    seen = sums.amax > 0
    return _spread(sums, numbers[seen], sums.amax[seen].astype(np.float64), _quarter_octaves(sums.amax[seen]), None)


def sqnr_spread(sums: AxisSums, numbers: Int64Array, request: int) -> Spread:
    """Bins of 1 dB; a channel that is lost beyond measure (infinite error) is in the lowest."""
    err2 = sums.err2[request]
    lossy = (sums.amax > 0) & (err2 != 0)
    ratio = np.fmax(sums.x2[lossy] / err2[lossy], np.finfo(np.float64).tiny)
    db = 10 * np.log10(ratio)  # NaN, from a scale whose inverse is infinite, counts as the least as well
    n_exact = int(np.count_nonzero((sums.amax > 0) & (err2 == 0)))
    return _spread(sums, numbers[lossy], db, np.floor(db).astype(np.int64), n_exact, worst_is_lowest=True)


def underflow_spread(sums: AxisSums, numbers: Int64Array, request: int) -> Spread:
    """Bins of 1 % of the channel's non-zero elements."""
    seen = sums.amax > 0
    total = sums.n_nonzero[seen].astype(np.int64)
    lost = total - sums.n_kept[request, seen]
    return _spread(sums, numbers[seen], lost / total, lost * 100 // total, None)


def _spread(
    sums: AxisSums,
    numbers: Int64Array,
    values: Float64Array,
    bins: Int64Array,
    n_exact: int | None,
    *,
    worst_is_lowest: bool = False,
) -> Spread:
    n_zero = int(np.count_nonzero(sums.amax == 0))
    present, counts = np.unique(bins, return_counts=True)
    if not values.size:
        return Spread(sums.amax.size, n_zero, n_exact, present, counts, None, None)
    worst = int(values.argmin() if worst_is_lowest else values.argmax())
    return Spread(sums.amax.size, n_zero, n_exact, present, counts, int(numbers[worst]), float(values[worst]))


def _quarter_octaves(amax: Float32Array) -> Int64Array:
    """floor(4 log2 amax) of positive numbers."""
    mantissa, exponent = np.frexp(amax)  # 0.5 <= mantissa < 1, exact for subnormals too
    quarter = np.searchsorted(_QUARTER_OCTAVES, 2 * mantissa.astype(np.float64), side="right")
    return 4 * (exponent.astype(np.int64) - 1) + quarter
