"""A sampled operand under one recipe and format: what the GEMM multiplies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fp8debug.blocks import rotate, spread
from fp8debug.formats import Float32Array, Format, fake_quantize, stochastic_fake_quantize
from fp8debug.hooks.probe.operand import Operand
from fp8debug.recipes import BlockRecipe, Recipe, TensorRecipe, Tile, scale_inv


@dataclass(frozen=True)
class Quantized:
    """Lines after the cast and back."""

    values: Float32Array
    """float32 (lines, depth): dequantised."""
    fmt: Format
    codes: Float32Array | None = None
    """float32 (lines, depth): values of the codes; None where no cast with factors makes them."""
    decode: Float32Array | None = None
    """float32 (lines, blocks): what each block's codes are multiplied with; (1, 1) for one factor for all."""
    length: int | None = None
    """Elements of a block along the contraction; None: the whole line."""


def quantized(operand: Operand, recipe: Recipe, fmt: Format, scale: np.float32 | None) -> Quantized:
    """Quantise the sampled lines as part of their whole tensor.

    Args:
        scale: the scale in force, for recipes that have one a tensor.
    """
    with np.errstate(all="ignore"):  # infinities and NaN are data
        if isinstance(recipe, BlockRecipe):
            return _in_blocks(operand, recipe, fmt)
        if scale is None:
            assert isinstance(recipe, TensorRecipe)
            return Quantized(recipe.round(operand.values, operand.facts.amax, operand.facts.amin, fmt)[0], fmt)
        codes, inverse = fake_quantize(operand.values * scale, fmt), scale_inv(scale)
        return Quantized(codes * inverse, fmt, codes, np.full((1, 1), inverse))


def _in_blocks(operand: Operand, recipe: BlockRecipe, fmt: Format) -> Quantized:
    values, tensor_amax = operand.values, operand.facts.amax
    if recipe.rotates(operand.tensor, operand.orientation):
        values = rotate(values)
        tensor_amax = float(np.fmax.reduce(np.abs(values), axis=None, initial=0))
    tile = Tile(1, recipe.tile(operand.tensor).length)  # one line at a time: its own row of the amaxes is at hand
    factors = recipe.factors(operand.block_amax(recipe, values), tensor_amax, fmt)
    encode = spread(factors.encode, tile, values.shape)
    scaled = values / encode if factors.divides else values * encode
    if recipe.rounds_stochastically(operand.tensor):
        codes = stochastic_fake_quantize(scaled, fmt, np.random.default_rng(0))  # the same draws each time
    else:
        codes = fake_quantize(scaled, fmt)
    return Quantized(codes * spread(factors.decode, tile, values.shape), fmt, codes, factors.decode, tile.length)
