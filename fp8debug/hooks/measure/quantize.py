"""Operands as a GEMM in low precision reads them: quantised under any recipe and dequantised again, in torch.

Bit equal to `fp8debug.blocks.quantize_blocks` for block recipes. With one scale a tensor the codes are those of
`fp8debug.formats`, and they are divided by the scale, as torchao's emulated GEMMs do; multiplying with the inverse, as
the error sums do, rounds differently by at most one unit in the last place of float32.

Block factors and rotations are computed by the core on the host; the rest stays on the tensor's device.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fp8debug import blocks
from fp8debug.formats import Float32Array, Format
from fp8debug.hooks.measure.codecs import fake_quantize, stochastic_fake_quantize
from fp8debug.hooks.measure.layout import as_array
from fp8debug.recipes import BlockRecipe, Recipe, TensorRecipe, Tile


def quantize(
    t: Tensor,
    recipe: Recipe,
    tensor: str,
    orientation: str,
    scale: np.float32 | None = None,
    *,
    fmt: Format | None = None,
    amax: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """One operand of one GEMM, quantised and dequantised.

    Args:
        t: float32, bfloat16 or float16, (rows, columns); not rounded any further on its way in.
        recipe: any recipe.
        tensor: x | w | dy: decides formats, blocks and rotation.
        orientation: row | column; under column the GEMM contracts the first axis (see `gemms.GEMMS`).
        scale: the factor before the cast. Delayed scaling needs it; recipes with one scale a tensor and no memory find
            it themselves where it is None; block recipes do not read it.
        fmt: element format; default: the recipe's own.
        amax: largest magnitude of the whole tensor, when `t` is only a part of it (after the rotation, where the
            recipe rotates); None: that of `t`.
        generator: source of stochastic rounding, of the tensor's device; torch's global one is never touched.

    Returns:
        float32, oriented: the contracted axis is the last, so that `a @ b.T` is the GEMM of two operands. (rows,
        columns), or (columns, rows) under column. Rotated operands stay rotated: it cancels in their product.

    Raises:
        TypeError: another dtype.
        ValueError: the recipe needs a scale or a generator, and there is none.
    """
    if t.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"expected float32, bfloat16 or float16, got {t.dtype}")
    fmt = fmt or recipe.formats_for(tensor)[0][0]
    wide = t.detach().float()
    line = wide if orientation == "row" else wide.T
    if isinstance(recipe, BlockRecipe):
        if recipe.rotates(tensor, orientation):
            line = on_host(blocks.rotate, line)
        return _quantize_blocks(line, recipe, tensor, fmt, amax, generator)
    if isinstance(recipe, TensorRecipe) and scale is None:
        amax = largest_magnitude(t) if amax is None else amax
        if not recipe.is_plain:
            return on_host(_rounding(recipe, amax, smallest_magnitude(t), fmt), line)
        scale = recipe.scale(amax, fmt)
    if scale is None:
        raise ValueError(f"recipe {recipe.text} has a history: expected the scale in force, got None")
    factor = torch.tensor(scale, device=line.device)  # divided by a Python number, GPUs multiply with the reciprocal
    return fake_quantize(line * factor, fmt).div_(factor)


def largest_magnitude(t: Tensor) -> float:
    """Largest magnitude as the scaling kernels see it: infinity where there is one, NaN passed over, 0 when empty."""
    if not t.numel():
        return 0.0
    amax = float(t.detach().abs().amax())
    return amax if not math.isnan(amax) else float(_without_nan(t.detach().abs()).amax())


def smallest_magnitude(t: Tensor) -> float:
    """Smallest magnitude that is neither zero nor NaN; 0 when there is none."""
    magnitude = t.detach().abs()
    kept = magnitude[magnitude > 0]
    return float(kept.amin()) if kept.numel() else 0.0


def _quantize_blocks(
    line: Tensor, recipe: BlockRecipe, tensor: str, fmt: Format, amax: float | None, generator: torch.Generator | None
) -> Tensor:
    tiles = _tiled(line, recipe.tile(tensor))
    magnitude = tiles.abs() if recipe.nan_spreads else _without_nan(tiles.abs())
    block_amax = magnitude.amax((1, 3)).cpu().numpy() if tiles.numel() else np.zeros(tiles.shape[::2], np.float32)
    factors = recipe.factors(block_amax, float(block_amax.max(initial=0)) if amax is None else amax, fmt)
    encode, decode = (torch.from_numpy(f).to(line.device)[:, None, :, None] for f in (factors.encode, factors.decode))
    scaled = tiles / encode if factors.divides else tiles * encode
    values = _rounded(scaled, recipe, tensor, fmt, generator).mul_(decode)
    return values.flatten(0, 1).flatten(1, 2)[: line.shape[0], : line.shape[1]]


def _tiled(line: Tensor, tile: Tile) -> Tensor:
    """(lines, length) as (tiles, lines of a tile, tiles, length of a tile); partial tiles are filled up with zeros."""
    lines, length = line.shape
    deep = max(length, 1) if tile.length is None else tile.length
    padding = (0, -length % deep, 0, -lines % tile.lines)
    whole = torch.nn.functional.pad(line, padding) if any(padding) else line
    return whole.reshape(whole.shape[0] // tile.lines, tile.lines, whole.shape[1] // deep, deep)


def _rounded(
    scaled: Tensor, recipe: BlockRecipe, tensor: str, fmt: Format, generator: torch.Generator | None
) -> Tensor:
    if not recipe.rounds_stochastically(tensor):
        rounded = fake_quantize(scaled, fmt)
    elif generator is None:
        raise ValueError(f"recipe {recipe.text} rounds {tensor} stochastically: expected a generator, got None")
    else:
        rounded = stochastic_fake_quantize(scaled, fmt, generator)
    return rounded if fmt.has_nan else rounded.nan_to_num(nan=fmt.max)


def _without_nan(magnitude: Tensor) -> Tensor:
    return magnitude.nan_to_num(nan=0.0, posinf=math.inf)


def _rounding(recipe: TensorRecipe, amax: float, amin: float, fmt: Format) -> Callable[[Float32Array], Float32Array]:
    return lambda values: recipe.round(values, amax, amin, fmt)[0]


def on_host(compute: Callable[[Float32Array], Float32Array], line: Tensor) -> Tensor:
    """What numpy computes of `line`, float32, back on its device."""
    return torch.from_numpy(compute(as_array(line.cpu()))).to(line.device)
