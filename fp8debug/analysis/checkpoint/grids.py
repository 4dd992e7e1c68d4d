"""Which number of a scale belongs to which codes."""

from __future__ import annotations

from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.formats import Float32Array

_Number = TypeVar("_Number", bound=np.generic)


def scale_numbers(store: Store, scale: Scale) -> Float32Array:
    """All numbers of a scale as they are stored, in its stored shape; before any division."""
    return numbers(store.whole(scale.name), scale.encoding).reshape(scale.shape)


def grid_of(quantised: Quantised, scale: Scale, stored: Float32Array) -> Float32Array:
    """What codes are multiplied with, one number a block of the tensor seen as (lines, length).

    Args:
        quantised: the tensor.
        scale: one of its scales.
        stored: its numbers, see `scale_numbers`.

    Returns:
        float32 of shape (1, 1), (lines, 1), (1, columns), or (block lines of all stacked matrices, block columns);
        inverted where the scale divides, by an IEEE division.
    """
    with np.errstate(all="ignore"):
        factors = np.float32(1) / stored if scale.divides else stored
    if scale.layout == "tensor":
        # One number for the tensor, or one for each matrix of a stack.
        if factors.size == 1:
            return factors.reshape(1, 1)
        return np.repeat(factors.reshape(-1), quantised.lines // factors.size).reshape(-1, 1)
    if scale.layout == "line":
        return factors.reshape(-1, 1)
    if scale.layout == "column":
        return factors.reshape(1, -1)
    assert scale.block is not None
    down, across = blocks_in(quantised, scale.block)
    matrices = prod(quantised.shape[:-2])
    if scale.is_swizzled:
        factors = unswizzled(factors, down, across)
    elif scale.is_transposed:
        factors = np.swapaxes(factors.reshape(matrices, across, down), -1, -2)
    return np.ascontiguousarray(factors).reshape(matrices * down, across)


def blocks_in(quantised: Quantised, block: tuple[int, int]) -> tuple[int, int]:
    """Lines and columns of the grid of each matrix; the last blocks may be smaller."""
    rows = quantised.shape[-2] if len(quantised.shape) > 1 else 1
    return -(-rows // block[0]), -(-quantised.length // block[1])


def unswizzled(stored: npt.NDArray[_Number], lines: int, length: int) -> npt.NDArray[_Number]:
    """A grid in the order of tensor cores as (matrices, lines, length), without its padding.

    Of a tile of 128 x 4 numbers, the one of line r and column c is number 16 (r mod 32) + 4 (r div 32) + c; tiles
    follow one another line of tiles by line of tiles (cuBLAS, "1D block scaling factors layout").
    """
    down, across = -(-lines // 128), -(-length // 4)
    tiles = stored.reshape(-1, down, across, 32, 4, 4)
    grid = tiles.transpose(0, 1, 4, 3, 2, 5).reshape(-1, 128 * down, 4 * across)
    return grid[:, :lines, :length]


def line_blocks(quantised: Quantised, scale: Scale) -> npt.NDArray[np.intp] | None:
    """For each line of the tensor the row of the grid that it belongs to; None: the one row there is."""
    if scale.layout == "block":
        assert scale.block is not None
        rows = quantised.shape[-2] if len(quantised.shape) > 1 else 1
        in_matrix = np.arange(rows) // scale.block[0]
        stack = np.arange(quantised.lines // max(rows, 1))[:, None] * (-(-rows // scale.block[0]))
        blocks: npt.NDArray[np.intp] = (stack + in_matrix).reshape(-1)
        return blocks
    return None


def column_block(scale: Scale) -> int | None:
    """Columns that share a number; None: all of them, or (layout column) one each."""
    return scale.block[1] if scale.block is not None and scale.layout == "block" else None


def spread_over(
    grid: Float32Array, rows: npt.NDArray[np.intp] | None, first: int, last: int, width: int | None, length: int
) -> Float32Array:
    """Factors of the lines first..last, broadcastable to (last - first, length)."""
    if rows is not None:
        part = grid[rows[first:last]]
    elif grid.shape[0] > 1:
        part = grid[first:last]
    else:
        part = grid
    return part if width is None else np.repeat(part, width, axis=1)[:, :length]
