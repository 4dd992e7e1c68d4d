"""Which lines of an operand, and with them which rows and columns of a result, are sampled: always the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_LINES = 32
MIN_LINES = 8
MAX_ELEMENTS = 1 << 19
"""Longer contractions than this many elements by `MAX_LINES` get fewer lines, down to `MIN_LINES`."""

_STRIP = 128  # the largest tile of any recipe has this many lines
_STRIPS = 4


@dataclass(frozen=True, slots=True)
class Lines:
    """Some lines of a matrix, ascending."""

    slices: tuple[slice, ...]
    """Their numbers, as slices with a start, a stop and a step."""
    total: int
    """Lines that the matrix has."""

    def __len__(self) -> int:
        return sum(len(range(s.start, s.stop, s.step)) for s in self.slices)

    def numbers(self) -> npt.NDArray[np.int64]:
        """int64, (lines,)."""
        return np.concatenate([np.arange(s.start, s.stop, s.step) for s in self.slices])

    @property
    def text(self) -> str:
        """Python's slices and the total, such as `0:8,1024:1032 of 4096` or `79:4048:127 of 4096`."""
        parts = (f"{s.start}:{s.stop}" + (f":{s.step}" if s.step > 1 else "") for s in self.slices)
        return f"{','.join(parts)} of {self.total}"

    def every(self, period: int) -> tuple[Lines, npt.NDArray[np.int64]]:
        """Every `period`th line of each slice, and where those stand among these lines."""
        kept, places, first = [], [], 0
        for s in self.slices:
            length = len(range(s.start, s.stop, s.step))
            chosen = np.arange(0, length, period)
            last = s.start + int(chosen[-1]) * s.step
            kept.append(slice(s.start, last + 1, s.step * period if len(chosen) > 1 else 1))
            places.append(first + chosen)
            first += length
        return Lines(tuple(kept), self.total), np.concatenate(places)


def n_lines(depth: int) -> int:
    """Lines to take of an operand whose contraction is `depth` long: a product costs the same at any size, almost."""
    return min(MAX_LINES, max(MIN_LINES, MAX_ELEMENTS // max(depth, 1)))


def spaced_lines(total: int, wanted: int) -> Lines:
    """`wanted` single lines from end to end, or all.

    The distance is odd: sequences and heads tend to be powers of two long, and lines in step with them would all be
    first tokens.
    """
    if total <= wanted:
        return Lines((slice(0, total, 1),), total)
    step = max((total // wanted - 1) | 1, 1)
    first = (total - (wanted - 1) * step) // 2
    return Lines((slice(first, first + (wanted - 1) * step + 1, step),), total)


def tiled_lines(total: int, wanted: int) -> Lines:
    """`wanted` lines in a few runs, each inside one strip of 128 lines, or all.

    Tiles of several lines have to be looked at whole for their amax: the fewer strips, the fewer bytes.
    """
    if total <= wanted:
        return Lines((slice(0, total, 1),), total)
    strips = -(-total // _STRIP)
    runs = max(1, min(_STRIPS, strips, wanted // MIN_LINES))
    length = wanted // runs
    starts = ((2 * i + 1) * strips // (2 * runs) * _STRIP for i in range(runs))
    return Lines(tuple(slice(start, min(start + length, total), 1) for start in starts), total)
