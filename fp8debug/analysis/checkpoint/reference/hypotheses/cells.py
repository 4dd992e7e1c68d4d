"""A matrix cut into cells that have one factor each: sums over them, and numbers of cells spread over it again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from fp8debug.formats import Float32Array
from fp8debug.metrics import Float64Array

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Cells:
    """Cells of sampled lines: rows of cells are told by number, columns are evenly wide."""

    rows: Rows
    """(lines,): the row of cells of each line, ascending; numbers may be left out."""
    width: int
    """Columns of a cell; the last one may have fewer."""
    length: int
    """Columns of the matrix."""

    @cached_property
    def numbers(self) -> Rows:
        """Row numbers that occur."""
        return self.rows[self._starts]

    @cached_property
    def _starts(self) -> Rows:
        return np.concatenate([np.zeros(1, np.intp), np.flatnonzero(np.diff(self.rows)) + 1])

    @cached_property
    def _index(self) -> Rows:
        return np.cumsum(np.concatenate([np.zeros(1, np.intp), (np.diff(self.rows) != 0).astype(np.intp)]))

    @property
    def shape(self) -> tuple[int, int]:
        """Rows that occur, and columns of cells."""
        return len(self._starts), -(-self.length // self.width)

    @property
    def n(self) -> int:
        """Cells."""
        return self.shape[0] * self.shape[1]

    def sum(self, values: npt.NDArray[np.floating]) -> Float64Array:
        """Sums over the cells, float64, of a matrix (lines, length)."""
        of_lines = np.add.reduceat(values, np.arange(0, self.length, self.width), axis=1, dtype=np.float64)
        sums: Float64Array = np.add.reduceat(of_lines, self._starts, axis=0)
        return sums

    def dot(self, a: Float32Array, b: Float32Array) -> Float64Array:
        """Sums of products over the cells, in float64 throughout: wrong scales make values of any size."""
        return self.sum(np.multiply(a, b, dtype=np.float64))

    def largest(self, values: Float32Array) -> Float32Array:
        """The largest of each cell."""
        of_lines = np.maximum.reduceat(values, np.arange(0, self.length, self.width), axis=1)
        most: Float32Array = np.maximum.reduceat(of_lines, self._starts, axis=0)
        return most

    def spread(self, per_cell: npt.NDArray[np.floating]) -> Float32Array:
        """Numbers of cells, for each element: float32, broadcastable to (lines, length)."""
        lines = per_cell[self._index].astype(np.float32)
        return lines if lines.shape[1] == 1 else np.repeat(lines, self.width, axis=1)[:, : self.length]

    def at_cells(self, factors: Float32Array) -> Float64Array:
        """What the first line and column of each cell has, of factors that are broadcastable to the matrix."""
        whole = np.broadcast_to(factors, (len(self.rows), self.length))
        return whole[self._starts][:, :: self.width].astype(np.float64)


def ratio(numerator: Float64Array, denominator: Float64Array) -> Float64Array:
    """Elementwise; NaN where the denominator is not positive."""
    quotient = np.full(np.shape(numerator), np.nan)
    np.divide(numerator, denominator, out=quotient, where=np.asarray(denominator) > 0)
    return quotient
