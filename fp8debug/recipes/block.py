"""Recipes with one scale a block, and those whose block scales are float32 numbers.

Blocks lie in the oriented tensor: the axis that the GEMM contracts is the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fp8debug.formats import Float32Array, Format
from fp8debug.recipes.base import Recipe, require_choice, require_flags

_BF16_MAX = np.uint32(0x7F7F0000).view(np.float32)
_EXPONENT = np.uint32(0xFF800000)
_DEEPSEEK_AMAX = np.float32(1e-4)
_TORCHAO_EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Tile:
    """Size of a block of the oriented tensor."""

    lines: int
    """Lines that share a scale."""
    length: int | None
    """Elements along the contraction axis that share it; None: the whole line."""


@dataclass(frozen=True, slots=True)
class BlockFactors:
    """What each block is multiplied with; float32, one element a block.

    scaled = x * encode, or x / encode where `divides`; q = value(code(scaled)) * decode.
    """

    encode: Float32Array
    decode: Float32Array
    divides: bool = False


@dataclass(frozen=True, kw_only=True)
class BlockRecipe(Recipe):
    """One scale a block, from the block's amax and, in two-level recipes, the tensor's."""

    @property
    def nan_spreads(self) -> bool:
        """Whether a NaN makes its whole block NaN; if not, the amax passes over it and only that element is NaN."""
        return False

    def tile(self, tensor: str) -> Tile:
        """Block of `tensor`, in either orientation."""
        raise NotImplementedError

    def factors(self, block_amax: Float32Array, tensor_amax: float, fmt: Format) -> BlockFactors:
        """Factors of blocks.

        Args:
            block_amax: float32, any shape: largest magnitude of each block; NaN gives NaN factors.
            tensor_amax: largest magnitude of the tensor, after any rotation; read by two-level recipes only.
            fmt: element format.

        Returns:
            Factors in the shape of `block_amax`.
        """
        raise NotImplementedError

    def rotates(self, tensor: str, orientation: str) -> bool:
        """Whether `tensor` in that orientation (row | column) goes through a Hadamard transform before."""
        return False

    def rounds_stochastically(self, tensor: str) -> bool:
        """Whether elements of `tensor` are rounded stochastically instead of to nearest."""
        return False


@dataclass(frozen=True, kw_only=True)
class RowWise(BlockRecipe):
    """One scale a line of the GEMM operand, torchao's recipe `rowwise`: E4M3 for all three tensors."""

    kind: ClassVar[str] = "rowwise"
    fp8_format: str = "E4M3"
    power_of_two: bool = True
    """Round the scale down to a power of two."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flags(self, "power_of_two")

    @property
    def nan_spreads(self) -> bool:
        """True: torch.amax keeps NaN."""
        return True

    def tile(self, tensor: str) -> Tile:
        """A whole line."""
        return Tile(1, None)

    def factors(self, block_amax: Float32Array, tensor_amax: float, fmt: Format) -> BlockFactors:
        """`amax_to_scale` of torchao/float8/float8_utils.py: amax at least 1e-12, quotient by way of float64."""
        with np.errstate(all="ignore"):
            quotient = fmt.max / np.maximum(block_amax.astype(np.float64), _TORCHAO_EPSILON)
            scale: Float32Array = quotient.astype(np.float32)
            scale = _round_down(scale) if self.power_of_two else scale
            return BlockFactors(encode=scale, decode=np.float32(1) / scale)


@dataclass(frozen=True, kw_only=True)
class BlockScaling(BlockRecipe):
    """1x128 blocks of x and dy, 128x128 tiles of w, as DeepSeek-V3 trained with.

    Flavours agree to the bit while scales are powers of two. With float32 scales they round differently: te scales by
    max / amax (Transformer Engine's recipe_common.cuh), deepgemm by 1 / (amax / max) (DeepGEMM's utils/math.py),
    deepseek divides by amax / max (DeepSeek's inference/kernel.py). The latter two take at least 1e-4 for the amax.
    """

    kind: ClassVar[str] = "block"
    fp8_format: str = "E4M3"
    power_of_two: bool = True
    """Scales are powers of two, rounded so that no block saturates."""
    flavour: str = "te"
    """te | deepgemm | deepseek"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flags(self, "power_of_two")
        require_choice(self, "flavour", ("te", "deepgemm", "deepseek"))

    @property
    def nan_spreads(self) -> bool:
        """DeepGEMM quantises with torch, whose amax keeps NaN; the maxima of CUDA and Triton pass over it."""
        return self.flavour == "deepgemm"

    def tile(self, tensor: str) -> Tile:
        """128x128 for w, 1x128 for the others."""
        return Tile(128, 128) if tensor == "w" else Tile(1, 128)

    def factors(self, block_amax: Float32Array, tensor_amax: float, fmt: Format) -> BlockFactors:
        """As in `BlockRecipe`. te: scale 1 where the amax is 0 or infinite, at most BF16's largest value."""
        maximum = np.float32(fmt.max)
        with np.errstate(all="ignore"):
            if self.flavour == "te":
                scale: Float32Array = np.minimum(maximum / block_amax, _BF16_MAX)
                scale = np.where((block_amax == 0) | (block_amax == np.inf), np.float32(1), scale)
                scale = _round_down(scale) if self.power_of_two else scale
                return BlockFactors(encode=scale, decode=np.float32(1) / scale)
            amax: Float32Array = np.maximum(block_amax, _DEEPSEEK_AMAX)
            inverse = amax / maximum
            inverse = _round_up(inverse) if self.power_of_two else inverse
            if self.flavour == "deepseek":
                return BlockFactors(encode=inverse, decode=inverse, divides=True)
            return BlockFactors(encode=np.float32(1) / inverse, decode=inverse)


def _round_down(scale: Float32Array) -> Float32Array:
    """Power of two at or below each normal, positive number; 0, infinity and NaN stay."""
    kept = np.isnan(scale)
    rounded: Float32Array = np.where(kept, scale, (scale.view(np.uint32) & _EXPONENT).view(np.float32))
    return rounded


def _round_up(scale: Float32Array) -> Float32Array:
    """Power of two at or above each normal, positive number; infinity and NaN stay."""
    bits = scale.view(np.uint32)
    up = ((bits + np.uint32(0x007FFFFF)) & _EXPONENT).view(np.float32)
    rounded: Float32Array = np.where(np.isfinite(scale), up, scale)
    return rounded
