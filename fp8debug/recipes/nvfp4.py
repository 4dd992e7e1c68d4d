"""NVFP4: E2M1 elements, an E4M3 scale for 16 of them, and one float32 scale for the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fp8debug.formats import E4M3, Float32Array, Format, fake_quantize
from fp8debug.recipes.base import FLT_MAX, require_choice, require_flags
from fp8debug.recipes.block import BlockFactors, BlockRecipe, Tile

_BLOCK = 16
_ONE = np.float32(1)
_SIX = np.float32(6)
_SIXTH = _ONE / _SIX
_RANGE = np.float32(448 * 6)
_RANGE_INV = _ONE / _RANGE
_FLT_MAX = np.float32(FLT_MAX)


@dataclass(frozen=True, kw_only=True)
class NVFP4(BlockRecipe):
    """NVFP4 in the order of operations of one upstream; they disagree where block scales get small.

    te: Transformer Engine's core_nvfp4.cuh, no lower bound of the block scale; 16x16 tiles of w and the Hadamard
    transform of x and dy in column orientation (both operands of wgrad), unless disabled. torchao: its
    `nvfp4_quantize`, block scales at least 2^-6. modelopt: ModelOpt's `NVFP4QTensor`, at least 2^-9, and 1 for a block
    of zeros. The latter two have 1x16 blocks throughout and no transform.
    """

    kind: ClassVar[str] = "nvfp4"
    choices: ClassVar[tuple[str, ...]] = ("E2M1",)
    fp8_format: str = "E2M1"
    flavour: str = "te"
    """te | torchao | modelopt"""
    disable_rht: bool = False
    """No Hadamard transform."""
    disable_2d_quantization: bool = False
    """1x16 blocks for w too."""
    stochastic_rounding: bool = False
    """Round the elements of dy stochastically, as Transformer Engine does unless told not to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "flavour", ("te", "torchao", "modelopt"))
        require_flags(self, "disable_rht", "disable_2d_quantization", "stochastic_rounding")

    @property
    def nan_spreads(self) -> bool:
        """torch.amax keeps NaN; the maxima of Transformer Engine's kernels pass over it."""
        return self.flavour != "te"

    def tile(self, tensor: str) -> Tile:
        """1x16; 16x16 for w under te."""
        is_square = tensor == "w" and self.flavour == "te" and not self.disable_2d_quantization
        return Tile(_BLOCK if is_square else 1, _BLOCK)

    def rotates(self, tensor: str, orientation: str) -> bool:
        """x and dy in column orientation, under te."""
        return self.flavour == "te" and not self.disable_rht and tensor in ("x", "dy") and orientation == "column"

    def rounds_stochastically(self, tensor: str) -> bool:
        """dy, when asked."""
        return self.stochastic_rounding and tensor == "dy"

    def block_scales(self, block_amax: Float32Array, tensor_amax: float) -> Float32Array:
        """The E4M3 scale of each block, as float32 in the shape of `block_amax`."""
        with np.errstate(all="ignore"):
            if self.flavour == "te":
                return fake_quantize(block_amax * (_tensor_encode(tensor_amax) * _SIXTH), E4M3)
            tensor_scale = np.float32(tensor_amax) / _RANGE
            if self.flavour == "torchao":
                quotient = block_amax / _SIX / tensor_scale
                return fake_quantize(np.maximum(quotient, np.float32(E4M3.min_normal)), E4M3)
            quotient = block_amax / (_SIX * tensor_scale)
            quotient = np.where(quotient == 0, _ONE, quotient)
            return fake_quantize(np.maximum(quotient, np.float32(E4M3.min_subnormal)), E4M3)

    def factors(self, block_amax: Float32Array, tensor_amax: float, fmt: Format) -> BlockFactors:
        """As in `BlockRecipe`. A tensor of zeros has NaN factors under torchao and modelopt, which divide 0 by 0."""
        scales = self.block_scales(block_amax, tensor_amax)
        with np.errstate(all="ignore"):
            if self.flavour == "te":
                encode = np.minimum(_ONE / (scales * (_ONE / _tensor_encode(tensor_amax))), _FLT_MAX)
                return BlockFactors(encode=encode, decode=scales * np.float32(tensor_amax) * _RANGE_INV)
            tensor_scale = np.float32(tensor_amax) / _RANGE
            decode = scales * tensor_scale
            if self.flavour == "torchao":
                return BlockFactors(encode=_ONE / tensor_scale / scales, decode=decode)
            return BlockFactors(encode=decode, decode=decode, divides=True)


def _tensor_encode(tensor_amax: float) -> np.float32:
    """Transformer Engine's `S_enc`: what brings the tensor's amax to 448 * 6."""
    if tensor_amax == 0:
        return _ONE
    scale = min(_RANGE / np.float32(tensor_amax), _FLT_MAX)
    return scale or _ONE
