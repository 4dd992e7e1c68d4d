"""Sums of blocks and channels in numpy, from the core's own quantisers: slow, for every recipe, anywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fp8debug import blocks
from fp8debug.formats import Float32Array, Format
from fp8debug.hooks.measure.blocks import BlockSums
from fp8debug.hooks.measure.channels import AxisSums
from fp8debug.hooks.measure.strips import Strip
from fp8debug.recipes import BlockRecipe, Tile, scaled_cast

Float64Array = npt.NDArray[np.float64]


def block_sums(
    strip: Strip,
    recipe: BlockRecipe,
    tensor: str,
    fmt: Format,
    tensor_amax: float,
    rng: np.random.Generator | None,
) -> BlockSums:
    """Sums of one strip; arguments as in `Engine.block_sums`."""
    tile, x = recipe.tile(tensor), strip.x[:, : strip.length]
    read = np.ascontiguousarray(strip.read[:, : strip.length])
    quantized = blocks.quantize_blocks(read, recipe, tensor, fmt, tensor_amax, rng)
    amax = blocks.block_amax(read, tile, nan_spreads=True)
    measured = blocks.spread(np.isfinite(amax) & (amax > 0), tile, x.shape)
    x64, q64 = (np.where(measured, values, np.float32(0)).astype(np.float64) for values in (x, quantized.values))
    n_nonzero, n_kept = int(np.count_nonzero(x64)), int(np.count_nonzero((x64 != 0) & (q64 != 0)))
    overflow = _per_block((quantized.beyond & measured).astype(np.float64), tile)
    with np.errstate(all="ignore"):
        x2, err2 = _per_block(x64**2, tile), _per_block((x64 - q64) ** 2, tile)
        ratio = np.where(err2 > 0, x2 / err2, np.inf)
        worst = int(ratio.argmin())
        return BlockSums(
            amax,
            np.float32(1) / quantized.factors.encode if quantized.factors.divides else quantized.factors.encode,
            n_nonzero=n_nonzero,
            n_underflow=n_nonzero - n_kept,
            n_overflow=int(overflow.sum()),
            x2=float(x2.sum()),
            q2=float((q64**2).sum()),
            xq=float((x64 * q64).sum()),
            err2=float(err2.sum()),
            n_saturated=int(np.count_nonzero(overflow)),
            worst=worst if err2.flat[worst] > 0 else None,
            worst_ratio=float(ratio.flat[worst]),
        )


def add_channels(
    x: Float32Array, requests: Sequence[tuple[np.float32, Format]], lines: AxisSums, columns: AxisSums
) -> None:
    """Add one strip to the sums of its lines and columns; arguments as in `Engine.add_channels`."""
    magnitude = np.abs(x)
    magnitude = np.where(magnitude < np.inf, magnitude, np.float32(0))
    square = magnitude.astype(np.float64) ** 2
    for axis, sums in ((1, lines), (0, columns)):
        np.maximum(sums.amax, magnitude.max(axis=axis), out=sums.amax)
        sums.n_nonzero[:] += np.count_nonzero(magnitude, axis=axis).astype(np.uint32)
        sums.x2[:] += square.sum(axis=axis)
    for i, (scale, fmt) in enumerate(requests):
        q32 = np.where(magnitude != 0, scaled_cast(magnitude, scale, fmt)[0], np.float32(0))
        error = (magnitude.astype(np.float64) - q32) ** 2
        for axis, sums in ((1, lines), (0, columns)):
            sums.n_kept[i] += np.count_nonzero(q32, axis=axis).astype(np.uint32)
            sums.err2[i] += error.sum(axis=axis)


def _per_block(values: Float64Array, tile: Tile) -> Float64Array:
    """Sum over each block, (lines, length) to (blocks down, blocks across)."""
    height, width = tile.lines, tile.length or max(values.shape[1], 1)
    padded = np.pad(values, ((0, -values.shape[0] % height), (0, -values.shape[1] % width)))
    rows, columns = padded.shape[0] // height, padded.shape[1] // width
    total: Float64Array = padded.reshape(rows, height, columns, width).sum(axis=(1, 3))
    return total
