"""Scales that are right and stand at other blocks: transposed, reversed, shifted, in another order altogether."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.grids import column_block, line_blocks
from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.shifts import shifted
from fp8debug.analysis.checkpoint.reference.hypotheses.trial import Reading, Trial, try_reading
from fp8debug.errors import escape
from fp8debug.formats import Float32Array

_TILE_LINES, _TILE_COLUMNS = 128, 4
"""Tiles that tensor cores take the scales of MX and NVFP4 in: 32 x (4 x 4) numbers of 128 lines and 4 blocks."""


def other_places(evidence: Evidence) -> Iterator[Trial]:
    """The numbers of the grid in other orders."""
    quantised = evidence.quantised
    scale = quantised.grid_scale if quantised else None
    if quantised is None or scale is None or scale.layout == "tensor":
        return
    for name, message, factors in _orders(evidence, quantised, scale):
        found = try_reading(evidence, Reading(name, message, factors))
        if found is not None:
            yield found
    for message, grid in shifted(evidence, scale):
        factors = _others(evidence, scale) * evidence.spread_grid(scale, grid)
        found = try_reading(evidence, Reading("permuted_grid", message, factors))
        if found is not None:
            yield found


def _orders(evidence: Evidence, quantised: Quantised, scale: Scale) -> Iterator[tuple[str, str, Float32Array]]:
    name, grid = escape(scale.name), evidence.grids[scale.name]
    others = _others(evidence, scale)
    is_square = len(quantised.shape) == 2 and quantised.shape[0] == quantised.shape[1]
    if is_square:
        words = "a scale of lines was read as one of columns, or the other way round"
        if scale.layout == "block":
            words = f"{name} is the transposed grid"
        yield "transposed_grid", words, others * _transposed(evidence, quantised, scale, grid)
    if scale.layout != "block":
        for kind, message, order in _simple_orders(grid, name):
            yield kind, message, others * evidence.spread_grid(scale, order)
        return
    stack = grid.reshape(*scale.shape[:-2], -1, grid.shape[1]) if len(scale.shape) > 2 else grid[None]
    matrices = stack.reshape(-1, *stack.shape[-2:])
    if not is_square and min(matrices.shape[1:]) > 1:
        turned = matrices.reshape(len(matrices), matrices.shape[2], matrices.shape[1]).swapaxes(1, 2)
        words = f"{name} is written columns first and read rows first: the transposed grid"
        yield "transposed_grid", words, others * evidence.spread_grid(scale, _flat(turned))
    for kind, message, order in _block_orders(matrices, name):
        yield kind, message, others * evidence.spread_grid(scale, _flat(order))


def _others(evidence: Evidence, scale: Scale) -> Float32Array:
    """The factors of all scales but this one."""
    return evidence.factors_under({scale.name: np.ones_like(evidence.grids[scale.name])})


def _transposed(evidence: Evidence, quantised: Quantised, scale: Scale, grid: Float32Array) -> Float32Array:
    """At line i and column j what stands at line j and column i."""
    rows, width = line_blocks(quantised, scale), column_block(scale)
    if rows is None:
        turned = grid[0][evidence.lines][:, None] if scale.layout == "column" else grid[:, 0]
        return np.broadcast_to(turned, evidence.x.shape)
    return np.ascontiguousarray(grid[rows][:, evidence.lines // (width or 1)].T)


def _flat(matrices: Float32Array) -> Float32Array:
    return np.ascontiguousarray(matrices).reshape(-1, matrices.shape[-1])


def _simple_orders(grid: Float32Array, name: str) -> Iterator[tuple[str, str, Float32Array]]:
    axis = 0 if grid.shape[0] > 1 else 1
    yield "permuted_grid", f"the numbers of {name} stand in the reversed order", np.flip(grid, axis)
    for by in (1, -1):
        yield "permuted_grid", f"the numbers of {name} are shifted by one", np.roll(grid, by, axis)


def _block_orders(matrices: Float32Array, name: str) -> Iterator[tuple[str, str, Float32Array]]:
    axes = {0: "matrices", 1: "rows", 2: "columns"}
    for axis, noun in axes.items():
        if matrices.shape[axis] < 2:
            continue
        yield "permuted_grid", f"the {noun} of {name} stand in the reversed order", np.flip(matrices, axis)
        for by in (1, -1):
            yield "permuted_grid", f"the {noun} of {name} are shifted by one", np.roll(matrices, by, axis)
    yield "permuted_grid", f"rows and columns of {name} stand in the reversed order", np.flip(matrices, (1, 2))
    _, rows, columns = matrices.shape
    if rows % _TILE_LINES == 0 and columns % _TILE_COLUMNS == 0:
        words = f"{name} is stored in the tiles of 128 x 4 that tensor cores take, and was read line by line"
        yield "swizzled_grid", words, _out_of_tiles(matrices)


def _out_of_tiles(matrices: Float32Array) -> Float32Array:
    n, rows, columns = matrices.shape
    tiles = matrices.reshape(n, rows // _TILE_LINES, columns // _TILE_COLUMNS, 32, 4, 4)
    # In a tile, number (line, column) stands at (line % 32, line // 32, column).
    return np.ascontiguousarray(tiles.transpose(0, 1, 4, 3, 2, 5)).reshape(n, rows, columns)
