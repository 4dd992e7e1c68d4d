"""One operand of a GEMM: a sample of its lines, and what has to be known of the whole tensor to quantise them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.blocks import block_amax
from fp8debug.formats import Float32Array, Format
from fp8debug.hooks.probe.lines import Lines, n_lines, spaced_lines, tiled_lines
from fp8debug.hooks.recorder import Facts
from fp8debug.recipes import BlockRecipe, Recipe, TensorRecipe, Tile

Float64Array = npt.NDArray[np.float64]
TileKind = tuple[Tile, bool]
"""A tile of several lines, and whether a NaN makes its whole amax NaN."""

SAMPLED_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)

_MAGNITUDES = {2: (torch.int16, (1 << 15) - 1), 4: (torch.int32, (1 << 31) - 1), 8: (torch.int64, (1 << 63) - 1)}
"""By element size: the integers that the magnitudes of floats compare as, and all bits but the sign."""


@dataclass(frozen=True)
class Operand:
    """Sampled lines of x, w or dy, the contracted axis last."""

    tensor: str
    orientation: str
    """row | column, as in `fp8debug.gemms.GEMMS`."""
    lines: Lines
    sample: torch.Tensor
    """(lines, depth), on the CPU, contiguous, in the dtype that the GEMM reads."""
    tile_amaxes: dict[TileKind, Float32Array]
    """For tiles of several lines: float32 (lines, tiles along the contraction), the amax of each line's tiles."""
    facts: Facts
    """Of the whole tensor."""

    @cached_property
    def values(self) -> Float32Array:
        """float32 (lines, depth): what is quantised."""
        array: Float32Array = self.sample.to(torch.float32).numpy()
        return array

    @cached_property
    def exact(self) -> Float64Array:
        """float64 (lines, depth): what the high-precision GEMM reads."""
        array: Float64Array = self.sample.to(torch.float64).numpy()
        return array

    @property
    def depth(self) -> int:
        """Length of the contraction."""
        return self.sample.shape[1]

    @property
    def n_bytes(self) -> int:
        """Memory held while the operand is kept."""
        return self.sample.nbytes + sum(amaxes.nbytes for amaxes in self.tile_amaxes.values())

    def thinned(self, wanted: int) -> Operand:
        """About `wanted` of the lines: every second, third … of them."""
        lines, places = self.lines.every(max(round(len(self.lines) / wanted), 1))
        amaxes = {kind: amax[places] for kind, amax in self.tile_amaxes.items()}
        return replace(self, lines=lines, sample=self.sample[torch.from_numpy(places)], tile_amaxes=amaxes)

    def formats(self, recipe: Recipe) -> list[tuple[Format, bool, np.float32 | None]]:
        """(format, alternate, scale) under `recipe`, the scale where the recipe works with one; empty when unknown."""
        if isinstance(recipe, BlockRecipe) or (isinstance(recipe, TensorRecipe) and not recipe.is_plain):
            return [(fmt, alternate, None) for fmt, alternate in recipe.formats_for(self.tensor)]
        in_force = [(fmt, alternate, scale) for r, fmt, alternate, scale in self.facts.scales if r == recipe]
        return [found for found in in_force if found[2] is not None]

    def block_amax(self, recipe: BlockRecipe, values: Float32Array) -> Float32Array:
        """float32 (lines, blocks): the amax of the block that each line's elements are in; `values` may be rotated."""
        tile, nan_spreads = recipe.tile(self.tensor), recipe.nan_spreads
        if tile.lines > 1:
            return self.tile_amaxes[tile, nan_spreads]
        return block_amax(values, tile, nan_spreads=nan_spreads)


def take_operand(
    matrix: torch.Tensor,
    tensor: str,
    gemm_dtype: torch.dtype,
    facts: Facts,
    tiles: Iterable[TileKind],
    orientation: str,
) -> Operand:
    """Sample a matrix: x (tokens, K), w (N, K) or dy (tokens, N); what is taken are copies.

    Args:
        tiles: tiles of several lines that `tensor` is quantised in (see `tiles_of`).
    """
    oriented = matrix if orientation == "row" else matrix.t()
    total, depth = oriented.shape
    lines = (tiled_lines if tensor == "w" else spaced_lines)(total, n_lines(depth))
    sample = torch.cat([oriented[s] for s in lines.slices]).to("cpu", gemm_dtype).contiguous()
    amaxes = {kind: _tile_amaxes(oriented, lines, *kind, gemm_dtype) for kind in tiles}
    return Operand(tensor, orientation, lines, sample, amaxes, facts)


def tiles_of(recipes: Iterable[Recipe], tensor: str) -> list[TileKind]:
    """The tiles of several lines that `tensor` is quantised in."""
    blocks = [r for r in recipes if isinstance(r, BlockRecipe)]
    return list({(r.tile(tensor), r.nan_spreads): None for r in blocks if r.tile(tensor).lines > 1})


def _tile_amaxes(
    oriented: torch.Tensor, lines: Lines, tile: Tile, nan_spreads: bool, gemm_dtype: torch.dtype
) -> Float32Array:
    tile_rows = lines.numbers() // tile.lines
    amaxes = []
    for row in np.unique(tile_rows):
        largest = _largest(oriented[row * tile.lines : (row + 1) * tile.lines], gemm_dtype, nan_spreads)
        per_tile = block_amax(largest[None], Tile(1, tile.length), nan_spreads=nan_spreads)
        amaxes.append(np.repeat(per_tile, np.count_nonzero(tile_rows == row), axis=0))
    return np.concatenate(amaxes)


def _largest(strip: torch.Tensor, gemm_dtype: torch.dtype, nan_spreads: bool) -> Float32Array:
    """Largest magnitude of each column, float32, as the GEMM reads it.

    Magnitudes compare as their bit patterns do, many times faster on a CPU, with NaN above all.
    """
    integer, mask = _MAGNITUDES[strip.element_size()]
    bits = (strip.view(integer) & mask).amax(dim=0)
    largest: Float32Array = bits.view(strip.dtype).to("cpu", gemm_dtype).to(torch.float32).numpy()
    if not nan_spreads and np.isnan(largest).any():
        return _largest(strip.masked_fill(strip.isnan(), 0), gemm_dtype, nan_spreads=True)
    return largest
