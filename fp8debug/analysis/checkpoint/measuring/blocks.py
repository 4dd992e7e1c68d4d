"""The largest code of each block of a scale's grid, as bands of lines pass by."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.formats import Float32Array, Uint8Array

BAND_BYTES = 1 << 18
"""What is read at a time: small enough that all passes over it find it in the cache of the core."""
_NARROW = 128
"""Columns up to which numpy's reduction along the last axis is slower than doubling a window."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a tensor, seen as (lines, columns) of magnitudes, is cut into blocks; the last ones may be smaller."""

    matrix_lines: int
    """Lines of one matrix of a stack: blocks do not cross into the next."""
    n_matrices: int
    columns: int
    block_lines: int
    block_columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the grid, the matrices of a stack one after another."""
        return self.n_matrices * -(-self.matrix_lines // self.block_lines), -(-self.columns // self.block_columns)

    def spans(self, line_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Bands to read: first and last (exclusive) line, and first and last (exclusive) row of the grid.

        A band is whole rows of the grid, or part of one.
        """
        fitting = max(1, BAND_BYTES // max(line_bytes, 1))
        rows_of_matrix = -(-self.matrix_lines // self.block_lines)
        if self.matrix_lines % self.block_lines == 0:  # no partial blocks: the stack is one tall matrix
            heights = [(0, self.matrix_lines * self.n_matrices, 0)]
        else:
            heights = [(m * self.matrix_lines, self.matrix_lines, m * rows_of_matrix) for m in range(self.n_matrices)]
        whole_rows = fitting // self.block_lines
        step = whole_rows * self.block_lines or -(-self.block_lines // -(-self.block_lines // fitting))
        for start, height, grid_start in heights:
            for row in range(0, height, max(self.block_lines, step)):
                end = min(height, row + max(self.block_lines, step))
                for first in range(row, end, step):
                    last = min(end, first + step)
                    rows = first // self.block_lines, -(-last // self.block_lines)
                    yield start + first, start + last, grid_start + rows[0], grid_start + rows[1]


def blocks_of(quantised: Quantised, scale: Scale, n_scales: int) -> Blocks | None:
    """The blocks of a scale; None: it is one number, or the blocks cut a byte that holds two codes."""
    lines, length = quantised.lines, quantised.length
    matrix_lines = quantised.shape[-2] if len(quantised.shape) > 1 else 1
    if n_scales < 2 or not quantised.n:
        return None
    if scale.layout == "tensor":
        matrix_lines, block_lines, block_columns = lines, max(lines // n_scales, 1), length
    elif scale.layout == "line":
        matrix_lines, block_lines, block_columns = lines, 1, length
    elif scale.layout == "column":
        matrix_lines, block_lines, block_columns = lines, lines, 1
    else:
        assert scale.block is not None
        block_lines, block_columns = scale.block
        block_lines = min(block_lines, matrix_lines)
    block_columns = min(block_columns, length)
    packed = 2 if quantised.is_packed else 1
    if block_columns % packed:
        return None
    return Blocks(matrix_lines, lines // matrix_lines, length // packed, block_lines, block_columns // packed)


def fits(grid: Float32Array, blocks: Blocks | None, quantised: Quantised) -> bool:
    """Whether the factors of a grid, see `grids.grid_of`, are as many as the tensor has blocks, lines or columns."""
    if grid.size == 1 or grid.shape in ((quantised.lines, 1), (1, quantised.length)):
        return True
    return blocks is not None and grid.shape == blocks.shape


class Maxima:
    """The largest magnitude of each block; `of` is uint8, in the shape of the grid."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks
        self.of: Uint8Array = np.zeros(blocks.shape, np.uint8)
        self._buffers = np.empty((2, BAND_BYTES), np.uint8)

    def add(self, magnitudes: Uint8Array, first_row: int, last_row: int) -> None:
        """Take a band in, as `Blocks.spans` cuts them: uint8 (lines, columns)."""
        height = self._blocks.block_lines
        if last_row - first_row == 1:
            of_rows = magnitudes.max(axis=0, keepdims=True)
        elif height == 1:
            of_rows = magnitudes
        else:
            whole = len(magnitudes) // height * height
            of_rows = magnitudes[:whole].reshape(-1, height, magnitudes.shape[1]).max(axis=1)
            if whole < len(magnitudes):
                of_rows = np.concatenate([of_rows, magnitudes[whole:].max(axis=0, keepdims=True)])
        part = self.of[first_row:last_row]
        np.maximum(part, self._of_columns(of_rows), out=part)

    def _of_columns(self, rows: Uint8Array) -> Uint8Array:
        width, columns = self._blocks.block_columns, self._blocks.columns
        if width == 1:
            return rows
        whole = columns // width * width
        found = self._narrow(rows[:, :whole], width) if width <= _NARROW else _wide(rows[:, :whole], width)
        if whole < columns:
            found = np.concatenate([found, rows[:, whole:].max(axis=1, keepdims=True)], axis=1)
        return found

    def _narrow(self, rows: Uint8Array, width: int) -> Uint8Array:
        # Maxima of ever wider windows at every position, four gigabytes a second, of which every width-th is wanted.
        flat = np.ascontiguousarray(rows).reshape(-1)
        if flat.size > self._buffers.shape[1]:
            self._buffers = np.empty((2, flat.size), np.uint8)
        source, size, reached, turn = flat, flat.size, 1, 0
        while reached < width:
            shift = min(reached, width - reached)
            size -= shift
            target = self._buffers[turn][:size]
            np.maximum(source[:size], source[shift : shift + size], out=target)
            source, reached, turn = target, reached + shift, 1 - turn
        return source[::width].reshape(len(rows), -1)


def _wide(rows: Uint8Array, width: int) -> Uint8Array:
    found: Uint8Array = rows.reshape(len(rows), -1, width).max(axis=2)
    return found
