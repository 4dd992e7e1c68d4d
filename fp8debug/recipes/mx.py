"""Microscaling (OCP MX 1.0): blocks of 32 along the contraction axis, scales that are powers of two (E8M0)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fp8debug.formats import E8M0, Float32Array, Format, Uint8Array, decode
from fp8debug.recipes.base import require_choice, require_flags
from fp8debug.recipes.block import BlockFactors, BlockRecipe, Tile

SCALE_RULES = ("rceil", "floor", "ceil", "even")

_BLOCK = 32
_MANTISSA_BITS = 23
_MANTISSA = np.uint32(0x7FFFFF)
_LARGEST_CODE, _NAN_CODE = 254, 255


def e8m0_codes(block_amax: Float32Array, fmt: Format, rule: str) -> Uint8Array:
    """Codes of the block scales 2^(code - 127).

    With amax = m * 2^e, 1 <= m < 2, and the format's largest value M * 2^emax, the exponent is e - emax, plus one

    * rceil: if m > M, so that no block saturates (cuBLAS, Transformer Engine, `cvt.rp.satfinite.ue8m0`);
    * floor: never (OCP MX 1.0, section 6.3);
    * ceil: if m > 1 (torchao);
    * even: if m rounds to 2 in the format's significand (torchao, AMD Quark).

    Args:
        block_amax: float32, any shape.
        fmt: element format.
        rule: one of `SCALE_RULES`.

    Returns:
        uint8 of the same shape, clamped to 0..254; 255 for NaN. Infinity gives 254 under rceil, as the instruction
        does, and under the others what the formula gives for 2^128, as torchao does.
    """
    bits = block_amax.view(np.uint32)
    mantissa = bits & _MANTISSA
    if rule == "rceil":
        carries = mantissa > (np.float32(fmt.max).view(np.uint32) & _MANTISSA)
    elif rule == "ceil":
        carries = mantissa > 0
    elif rule == "even":
        carries = mantissa >= np.uint32((1 << _MANTISSA_BITS) - (1 << (_MANTISSA_BITS - 1 - fmt.mantissa_bits)))
    else:
        carries = np.zeros(bits.shape, dtype=np.bool_)
    # Subnormal amaxes have field 0: one too much, but far below the clamp anyhow.
    code = (bits >> np.uint32(_MANTISSA_BITS)).astype(np.int32) - _exponent_of_max(fmt) + carries
    code = np.clip(code, 0, _LARGEST_CODE)
    if rule == "rceil":
        code = np.where(np.isposinf(block_amax), _LARGEST_CODE, code)
    return np.where(np.isnan(block_amax), _NAN_CODE, code).astype(np.uint8)


def _torchao_rceil_codes(block_amax: Float32Array, fmt: Format) -> Uint8Array:
    """torchao's eager rceil: ceil(log2(amax / max)) with each step in float32, so just above 2^k it may miss."""
    with np.errstate(all="ignore"):
        quotient = block_amax / np.float32(fmt.max)
        exponent = np.ceil(np.log2(quotient.astype(np.float64)).astype(np.float32))
        code = np.clip(exponent, -127, 127) + 127
    code = np.where(np.isposinf(quotient), _LARGEST_CODE, code)
    return np.where(np.isnan(quotient), _NAN_CODE, code).astype(np.uint8)


@dataclass(frozen=True, kw_only=True)
class MXRecipe(BlockRecipe):
    """What MXFP8, MXFP6 and MXFP4 share."""

    scale_rule: str = "rceil"
    """rceil | floor | ceil | even: see `e8m0_codes`"""
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

    def codes(self, block_amax: Float32Array, fmt: Format) -> Uint8Array:
        """E8M0 codes of the block scales; 255 for NaN."""
        if self.flavour == "torchao" and self.scale_rule == "rceil":
            return _torchao_rceil_codes(block_amax, fmt)
        return e8m0_codes(block_amax, fmt, self.scale_rule)

    def factors(self, block_amax: Float32Array, tensor_amax: float, fmt: Format) -> BlockFactors:
        """As in `BlockRecipe`: exact powers of two."""
        codes = self.codes(block_amax, fmt)
        scales = decode(codes, E8M0)
        encode = np.float32(1) / scales
        if self.flavour == "torchao":
            lowest = np.float32(1.0 if self.scale_rule == "rceil" else 2.0**126)
            encode = np.where(codes == 0, lowest, encode)
        return BlockFactors(encode=encode, decode=scales)


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


def _exponent_of_max(fmt: Format) -> int:
    return math.frexp(fmt.max)[1] - 1
