"""Codes and scales made values again, a band of lines at a time: the one place where a convention is applied."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.grids import column_block, grid_of, line_blocks, scale_numbers, spread_over
from fp8debug.analysis.checkpoint.numbers import unpacked
from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.store import CHUNK_BYTES, Store
from fp8debug.formats import FORMATS, Float32Array, Uint8Array, decode

Float64Array = npt.NDArray[np.float64]


class Dequantiser:
    """A quantised tensor, ready to give its values; scales are read when it is made.

    Args:
        store: where it lies.
        quantised: how it is read.
        grids: other factors than those stored, by name of the scale: what a hypothesis multiplies with.
    """

    def __init__(self, store: Store, quantised: Quantised, grids: dict[str, Float32Array] | None = None) -> None:
        self.quantised = quantised
        self._store = store
        self._factors: list[tuple[Float32Array, npt.NDArray[np.intp] | None, int | None]] = []
        for scale in quantised.scales:
            grid = (grids or {}).get(scale.name)
            if grid is None:
                grid = grid_of(quantised, scale, scale_numbers(store, scale))
            self._factors.append((grid, line_blocks(quantised, scale), column_block(scale)))

    def factors(self, first: int, last: int) -> Float32Array:
        """What the codes of some lines are multiplied with, broadcastable to (last - first, length)."""
        length = self.quantised.length
        total = np.ones((1, 1), np.float32)
        with np.errstate(all="ignore"):
            for grid, rows, width in self._factors:
                total = total * spread_over(grid, rows, first, last, width, length)
        return total

    def codes(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, Float32Array]]:
        """Values of the codes, no scale applied: first line, float32 (lines, length)."""
        for first, raw in self._bands(chunk_bytes):
            codes = unpacked(raw, self.quantised.is_high_first) if self.quantised.is_packed else raw
            yield first, decode(codes, FORMATS[self.quantised.fmt])

    def bands(self, chunk_bytes: int = CHUNK_BYTES // 4) -> Iterator[tuple[int, Float32Array]]:
        """Dequantised values: first line, float32 (lines, length)."""
        for first, values in self.codes(chunk_bytes):
            with np.errstate(all="ignore"):
                yield first, values * self.factors(first, first + len(values))

    def at(self, positions: npt.NDArray[np.int64]) -> tuple[Float32Array, Float32Array]:
        """Values of single codes, and what they are multiplied with.

        Args:
            positions: int64, ascending, in the flattened tensor.

        Returns:
            Two float32 arrays of the same shape: values of the codes, factors.
        """
        lines, columns = np.divmod(positions, self.quantised.length)
        codes = np.empty(positions.shape, np.uint8)
        for first, raw in self._bands(CHUNK_BYTES):
            here = slice(*np.searchsorted(lines, (first, first + len(raw))))
            if self.quantised.is_packed:
                pairs = raw[lines[here] - first, columns[here] // 2]
                codes[here] = np.where(columns[here] % 2 != self.quantised.is_high_first, pairs >> 4, pairs & 15)
            else:
                codes[here] = raw[lines[here] - first, columns[here]]
        return decode(codes, FORMATS[self.quantised.fmt]), self._factors_at(lines, columns)

    def _factors_at(self, lines: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Float32Array:
        total = np.ones(lines.shape, np.float32)
        for grid, rows, width in self._factors:
            down = lines if rows is None else rows[lines]
            across = columns if width is None else columns // width
            with np.errstate(all="ignore"):
                total = total * grid[np.minimum(down, len(grid) - 1), np.minimum(across, grid.shape[1] - 1)]
        return total

    def _bands(self, chunk_bytes: int) -> Iterator[tuple[int, Uint8Array]]:
        return self._store.bands(self.quantised.name, lines=self.quantised.lines, chunk_bytes=chunk_bytes)
