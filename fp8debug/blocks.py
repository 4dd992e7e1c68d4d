"""Block scaling in numpy, bit exact: the slow and right reference for every faster implementation.

A GEMM operand is looked at as it enters the GEMM: `oriented`, with the contracted axis last. Blocks are tiles of that
matrix. Where lines or elements do not fill the last tile, it is smaller: the same as a tile filled up with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fp8debug.formats import (
    BoolArray,
    Float32Array,
    Format,
    Uint8Array,
    decode,
    encode,
    overflows,
    stochastic_fake_quantize,
)
from fp8debug.recipes import BlockFactors, BlockRecipe, Tile
from fp8debug.recipes.tensor import round_bf16

HADAMARD_SIZE = 16
# Transformer Engine's fixed signs, chosen once at random.
HADAMARD_SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass(frozen=True, slots=True)
class QuantizedBlocks:
    """An oriented tensor, quantised."""

    codes: Uint8Array
    """(lines, length): codes of the elements."""
    factors: BlockFactors
    """One of each factor a block, in the shape of `block_amax`."""
    values: Float32Array
    """(lines, length): dequantised, float32(code) * float32(decode factor)."""
    beyond: BoolArray
    """(lines, length): where the scaled value rounds beyond the largest finite value."""


def oriented(x: npt.NDArray[np.float32], orientation: str) -> Float32Array:
    """A matrix with the contracted axis last: row leaves it as it is, column transposes it."""
    return x if orientation == "row" else np.ascontiguousarray(x.T)


def block_amax(x: Float32Array, tile: Tile, *, nan_spreads: bool = False) -> Float32Array:
    """Largest magnitude of each block; infinities count.

    Args:
        x: float32, (lines, length), oriented.
        tile: size of a block.
        nan_spreads: whether a block with a NaN gets NaN (torch.amax) or the largest of the others, 0 if there is none
            (CUDA's fmaxf); `BlockRecipe.nan_spreads` knows which.

    Returns:
        float32, (ceil(lines / tile.lines), ceil(length / tile.length)).
    """
    height, width = _size(tile, x.shape)
    rows, columns = -(-x.shape[0] // height), -(-x.shape[1] // width)
    magnitude = np.abs(x)
    if magnitude.shape != (rows * height, columns * width):
        magnitude = np.pad(magnitude, ((0, rows * height - x.shape[0]), (0, columns * width - x.shape[1])))
    larger = np.maximum if nan_spreads else np.fmax
    amax: Float32Array = larger.reduce(magnitude.reshape(rows, height, columns, width), axis=(1, 3), initial=0)
    return amax


def spread(per_block: npt.NDArray[_Scalar], tile: Tile, shape: tuple[int, int]) -> npt.NDArray[_Scalar]:
    """Give each element what its block has: (block rows, block columns) to `shape`, that of the oriented tensor."""
    height, width = _size(tile, shape)
    lines = np.repeat(per_block, height, axis=0)[: shape[0]]
    return np.repeat(lines, width, axis=1)[:, : shape[1]]


def rotate(x: Float32Array, *, rounded: bool = True) -> Float32Array:
    """Random Hadamard transform of NVFP4: chunks c of 16 along the last axis become c * diag(signs) * H16 / 4.

    H16 is Sylvester's matrix, the signs are Transformer Engine's. Orthogonal, so a GEMM does not notice when both
    operands are transformed. A shorter last chunk stays as it is, which a GEMM does not notice either; Transformer
    Engine refuses such shapes.

    Args:
        x: float32, (lines, length), oriented.
        rounded: round transformed chunks to BF16, as the kernels do; False tells what that costs.

    Returns:
        float32 of the same shape.
    """
    lines, length = x.shape
    whole = length - length % HADAMARD_SIZE
    # Line by line: one large product would wake BLAS threads, which spin beside those of a training.
    chunks = x[:, :whole].reshape(lines, whole // HADAMARD_SIZE, HADAMARD_SIZE).astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinities of both signs give NaN
        rotated = (chunks @ _hadamard()).astype(np.float32)
    rotated = round_bf16(rotated) if rounded else rotated
    return np.concatenate([rotated.reshape(lines, whole), x[:, whole:]], axis=1)


def quantize_blocks(
    x: Float32Array,
    recipe: BlockRecipe,
    tensor: str,
    fmt: Format,
    tensor_amax: float | None = None,
    rng: np.random.Generator | None = None,
) -> QuantizedBlocks:
    """Quantise an oriented tensor block by block.

    A NaN element gets NaN where the format has one, else the format's largest value. In a recipe whose `nan_spreads`
    is true its block becomes NaN altogether; in the others it does not touch its neighbours. An infinite element
    saturates; its block's scale is what `factors` gives for an infinite amax.

    Args:
        x: float32, (lines, length), oriented, and rotated if the recipe `rotates`.
        recipe: a block recipe.
        tensor: x, w or dy: decides the tile and the rounding.
        fmt: element format.
        tensor_amax: amax of the whole tensor, when `x` is only a part of it; None: that of `x`.
        rng: source of the stochastic rounding.

    Raises:
        TypeError: `x` is not a float32 matrix.
        ValueError: the recipe rounds `tensor` stochastically and there is no `rng`.
    """
    if x.dtype != np.float32 or x.ndim != 2:
        raise TypeError(f"expected a float32 matrix, got {x.dtype} with {x.ndim} dimensions")
    tile = recipe.tile(tensor)
    amax = block_amax(x, tile, nan_spreads=recipe.nan_spreads)
    if tensor_amax is None:
        tensor_amax = float(amax.max(initial=0))
    factors = recipe.factors(amax, tensor_amax, fmt)
    with np.errstate(all="ignore"):  # infinities and NaN are data
        encode_factor = spread(factors.encode, tile, x.shape)
        scaled = x / encode_factor if factors.divides else x * encode_factor
        codes = encode(_rounded(scaled, recipe, tensor, fmt, rng), fmt)
        values = decode(codes, fmt) * spread(factors.decode, tile, x.shape)
    return QuantizedBlocks(codes, factors, values, overflows(scaled, fmt))


def _rounded(
    scaled: Float32Array, recipe: BlockRecipe, tensor: str, fmt: Format, rng: np.random.Generator | None
) -> Float32Array:
    if not recipe.rounds_stochastically(tensor):
        return scaled
    if rng is None:
        raise ValueError(f"recipe {recipe.text} rounds {tensor} stochastically: give it a generator")
    return stochastic_fake_quantize(scaled, fmt, rng)


def _size(tile: Tile, shape: tuple[int, ...]) -> tuple[int, int]:
    return tile.lines, tile.length if tile.length is not None else max(shape[1], 1)


@cache
def _hadamard() -> npt.NDArray[np.float64]:
    matrix = np.ones((1, 1))
    while len(matrix) < HADAMARD_SIZE:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.array(HADAMARD_SIGNS)[:, None] * matrix / 4
