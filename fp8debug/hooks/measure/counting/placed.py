"""Sums of blocks and channels from compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fp8debug import blocks
from fp8debug.formats import Float32Array, Format
from fp8debug.hooks.measure.blocks import BlockSums
from fp8debug.hooks.measure.channels import AxisSums
from fp8debug.hooks.measure.counting import places, sums
from fp8debug.hooks.measure.strips import Strip
from fp8debug.recipes import BlockRecipe, Tile

_ONE = np.float32(1)


def fits(strip: Strip, tile: Tile) -> bool:
    """Whether the kernels know blocks of this size: they end with units of 16 elements and with the columns."""
    length = tile.length or strip.x.shape[1]
    return length % places.UNIT == 0 and strip.x.shape[1] % length == 0


def block_sums(strip: Strip, recipe: BlockRecipe, tensor: str, fmt: Format, tensor_amax: float) -> BlockSums:
    """Sums of one strip under a recipe that rounds to nearest; arguments as in `Engine.block_sums`."""
    tile, (lines, columns) = recipe.tile(tensor), strip.x.shape
    length = tile.length or columns
    units, across = length // places.UNIT, -(-strip.length // length)
    largest = np.zeros((-(-lines // tile.lines), columns // length), np.uint32)
    places.block_largest(strip.read.view(np.uint32), tile.lines, units, largest)
    amax = largest.view(np.float32)
    factors = recipe.factors(amax, tensor_amax, fmt)
    scale, read = factors.encode, strip.read
    if factors.divides:  # then nothing is left to multiply with
        with np.errstate(all="ignore"):
            read = read / blocks.spread(factors.encode, Tile(tile.lines, length), strip.x.shape)
            scale = _ONE / factors.encode
    encode = np.ones_like(factors.encode) if factors.divides else factors.encode
    row = sums.parameter_rows([(_ONE, fmt)])[0]
    found = np.empty(10)
    places.sum_blocks(
        strip.x, read, tile.lines, units, largest,
        np.ascontiguousarray(encode), np.ascontiguousarray(factors.decode), row, found,
    )  # fmt: skip
    x2, err2, overflow, q2, xq, nonzero, kept, saturated, worst_ratio, worst = found.tolist()
    row_index, column = divmod(int(worst), largest.shape[1])
    return BlockSums(
        amax[:, :across],
        scale[:, :across],
        n_nonzero=int(nonzero),
        n_underflow=int(nonzero - kept),
        n_overflow=int(overflow),
        x2=x2,
        q2=q2,
        xq=xq,
        err2=err2,
        n_saturated=int(saturated),
        worst=row_index * across + column if worst >= 0 else None,
        worst_ratio=worst_ratio,
    )


def add_channels(
    x: Float32Array, requests: Sequence[tuple[np.float32, Format]], lines: AxisSums, columns: AxisSums
) -> None:
    """Add one strip to the sums of its lines and columns; arguments as in `Engine.add_channels`."""
    places.sum_sizes(
        x.view(np.uint32),
        lines.amax.view(np.uint32), lines.n_nonzero, lines.x2,
        columns.amax.view(np.uint32), columns.n_nonzero, columns.x2,
    )  # fmt: skip
    for i, row in enumerate(sums.parameter_rows(requests)):
        places.sum_errors(x, row, lines.n_kept[i], lines.err2[i], columns.n_kept[i], columns.err2[i])
