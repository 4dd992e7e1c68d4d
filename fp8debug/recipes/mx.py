"""Microscaling (OCP MX 1.0): blocks of 32 along the contraction axis, scales that are powers of two (E8M0)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fp8debug.formats import Float32Array, Format
from fp8debug.recipes.base import require_choice, require_flags
from fp8debug.recipes.block import BlockFactors, BlockRecipe, Tile

SCALE_RULES = ("rceil", "floor", "ceil", "even")

_BLOCK = 32
_ONE = np.float32(1)
_MANTISSA_BITS = 23
_MANTISSA = np.uint32(0x7FFFFF)
_EXPONENT = np.uint32(0x7F800000)
_LOWEST_SCALE = np.uint32(0x400000)  # the bits of 2^-127, a subnormal


def e8m0_scales(block_amax: Float32Array, fmt: Format, rule: str) -> Float32Array:
    """Scales of blocks: powers of two from 2^-127 to 2^127, which is what E8M0 can hold.

    With amax = m * 2^e, 1 <= m < 2, and the format's largest value M * 2^emax, the exponent is e - emax, plus one

    * rceil: if m > M, so that no block saturates (cuBLAS, Transformer Engine, `cvt.rp.satfinite.ue8m0`);
    * floor: never (OCP MX 1.0, section 6.3);
    * ceil: if m > 1 (torchao);
    * even: if m rounds to 2 in the format's significand (torchao, AMD Quark).

    Args:
        block_amax: float32, any shape, none negative.
        fmt: element format.
        rule: one of `SCALE_RULES`.

    Returns:
        float32 of the same shape. NaN for NaN; infinity gives 2^127 under rceil, as the instruction does, and under the
        others what the formula gives for 2^128, as torchao does.
    """
    bits = block_amax.view(np.uint32)
    lowest = np.uint32((math.frexp(fmt.max)[1] - 1) << _MANTISSA_BITS)
    # Subnormal amaxes have exponent field 0, one too much; but they are far below the lowest scale anyhow.
    scale_bits = np.maximum(bits + _what_carries(fmt, rule), lowest)
    scale_bits -= lowest
    scale_bits &= _EXPONENT
    scales: Float32Array = np.maximum(scale_bits, _LOWEST_SCALE).view(np.float32)
    if not np.isfinite(block_amax).all():
        scales = np.where(np.isnan(block_amax), np.float32(np.nan), scales)
        if rule == "rceil":
            scales = np.where(np.isposinf(block_amax), np.float32(2.0**127), scales)
    return scales


def _what_carries(fmt: Format, rule: str) -> np.uint32:
    """What added to the bits of an amax carries into its exponent exactly when the rule rounds up."""
    if rule == "rceil":
        largest = 2 * math.frexp(fmt.max)[0]  # M
        return np.uint32((2 - largest) * (1 << _MANTISSA_BITS) - 1)
    if rule == "ceil":
        return _MANTISSA
    return np.uint32(1 << (_MANTISSA_BITS - 1 - fmt.mantissa_bits) if rule == "even" else 0)


def _torchao_rceil_scales(block_amax: Float32Array, fmt: Format) -> Float32Array:
    """torchao's eager rceil: ceil(log2(amax / max)), each step in float32, so that just above 2^k it may miss."""
    with np.errstate(all="ignore"):
        logarithm = np.log2((block_amax / np.float32(fmt.max)).astype(np.float64))
        scales: Float32Array = np.exp2(np.clip(np.ceil(logarithm.astype(np.float32)), -127, 127))
    return scales


@dataclass(frozen=True, kw_only=True)
class MXRecipe(BlockRecipe):
    """What MXFP8, MXFP6 and MXFP4 share."""

    scale_rule: str = "rceil"
    """rceil | floor | ceil | even: see `e8m0_scales`"""
    flavour: str = "exact"
    """exact: the rule itself, as Transformer Engine's kernels give it | torchao: its eager code, which differs where
    the scale is 2^-127 and, under rceil, for amaxes of full float32 precision."""
    enable_2d_quantization: bool = False
    """One scale for 32x32 elements of w."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self, "scale_rule", SCALE_RULES)
        require_choice(self, "flavour", ("exact", "torchao"))
        require_flags(self, "enable_2d_quantization")

    @property
    def nan_spreads(self) -> bool:
        """torch.amax keeps NaN; the maxima of Transformer Engine's kernels pass over it."""
        return self.flavour == "torchao"

    def tile(self, tensor: str) -> Tile:
        """1x32, or 32x32 for w when asked."""
        return Tile(_BLOCK if tensor == "w" and self.enable_2d_quantization else 1, _BLOCK)

    def factors(self, block_amax: Float32Array, tensor_amax: float, fmt: Format) -> BlockFactors:
        """As in `BlockRecipe`: exact powers of two."""
        if self.flavour == "exact":
            scales = e8m0_scales(block_amax, fmt, self.scale_rule)
            return BlockFactors(encode=_ONE / scales, decode=scales)
        if self.scale_rule == "rceil":
            scales = _torchao_rceil_scales(block_amax, fmt)
            lowest = _ONE
        else:
            scales = e8m0_scales(block_amax, fmt, self.scale_rule)
            lowest = np.float32(2.0**126)
        return BlockFactors(encode=np.where(scales == 2.0**-127, lowest, _ONE / scales), decode=scales)


@dataclass(frozen=True, kw_only=True)
class MXFP8(MXRecipe):
    """MXFP8, by default in E4M3 for both passes as Transformer Engine has it."""

    kind: ClassVar[str] = "mxfp8"
    choices: ClassVar[tuple[str, ...]] = ("E4M3", "E5M2", "HYBRID")
    fp8_format: str = "E4M3"


@dataclass(frozen=True, kw_only=True)
class MXFP6(MXRecipe):
    """MXFP6."""

    kind: ClassVar[str] = "mxfp6"
    choices: ClassVar[tuple[str, ...]] = ("E2M3", "E3M2")
    fp8_format: str = "E2M3"


@dataclass(frozen=True, kw_only=True)
class MXFP4(MXRecipe):
    """MXFP4."""

    kind: ClassVar[str] = "mxfp4"
    choices: ClassVar[tuple[str, ...]] = ("E2M1",)
    fp8_format: str = "E2M1"
