"""Which lines of a tensor hold something, kept as ranges however many there are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.facts import LineRanges

KEPT_RANGES = 1000


class Lines:
    """Ranges of lines, grown from the front.

    Args:
        length: elements of a line.
    """

    def __init__(self, length: int) -> None:
        self._length = max(length, 1)
        self._n = 0
        self._ranges: list[tuple[int, int]] = []
        self._last = -1

    def add(self, elements: npt.NDArray[np.intp], first: int) -> None:
        """Add the lines of some elements.

        Args:
            elements: ascending numbers of elements, counted from `first`.
            first: number of the element that they are counted from; not before those of earlier calls.
        """
        lines = np.unique((elements + first) // self._length)
        lines = lines[lines > self._last]
        if not lines.size:
            return
        self._n += lines.size
        cuts = np.flatnonzero(np.diff(lines) > 1)
        starts, ends = lines[np.r_[0, cuts + 1]], lines[np.r_[cuts, lines.size - 1]]
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if start == self._last + 1 and self._ranges and self._ranges[-1][1] == self._last:
                self._ranges[-1] = (self._ranges[-1][0], end)
            elif len(self._ranges) < KEPT_RANGES:
                self._ranges.append((start, end))
            self._last = end

    def ranges(self) -> LineRanges:
        """What was added."""
        return LineRanges(self._n, tuple(self._ranges))
