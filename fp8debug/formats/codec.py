"""The fast codecs: float32 values to codes and back."""

from __future__ import annotations

from functools import cache

import numpy as np

from fp8debug.formats.e8m0 import encode_e8m0
from fp8debug.formats.format import BoolArray, Float32Array, Format, Uint8Array, require_float32
from fp8debug.formats.scalar import decode_scalar

_F32_MANTISSA_BITS = 23
_F32_BIAS = 127
_F32_EXPONENT_MASK = np.uint32(0x7F800000)
_F32_SIGN = np.uint32(0x80000000)


def fake_quantize(x: Float32Array, fmt: Format) -> Float32Array:
    """Round to the nearest value of `fmt` and return it as float32: decode(encode(x)) in one go.

    Args:
        x: float32, any shape, already multiplied with the scale.
        fmt: element format.

    Returns:
        float32 of the same shape; saturated, signs of zeros kept where the format has -0. NaN stays NaN even in formats
        without one: what it would be stored as is `encode`'s affair. For E8M0 see `encode_e8m0`.

    Raises:
        TypeError: `x` is not float32 (a float64 would be rounded twice).
    """
    require_float32(x)
    if fmt.is_scale:
        return decode(encode_e8m0(x), fmt)
    with np.errstate(invalid="ignore"):  # signalling NaNs in the input are data, not a mistake
        given = np.atleast_1d(x)
        magnitude = np.abs(given)
        np.minimum(magnitude, np.float32(fmt.max), out=magnitude)
        # Adding 2^(e + 23 - m) leaves exactly m bits below the leading one, and the float32 adder rounds to even.
        power_of_two = (magnitude.view(np.uint32) & _F32_EXPONENT_MASK).view(np.float32)
        np.maximum(power_of_two, np.float32(fmt.min_normal), out=power_of_two)
        power_of_two *= np.float32(2.0 ** (_F32_MANTISSA_BITS - fmt.mantissa_bits))
        magnitude += power_of_two
        magnitude -= power_of_two
        bits = magnitude.view(np.uint32)
        bits |= given.view(np.uint32) & _F32_SIGN  # np.copysign takes as long as all the rest
        rounded = magnitude.reshape(x.shape)
        return rounded if fmt.has_negative_zero else rounded + np.float32(0)


def encode(x: Float32Array, fmt: Format, *, saturate: bool = True) -> Uint8Array:
    """Cast float32 values to the codes of `fmt`.

    Args:
        x: float32, any shape, already multiplied with the scale.
        fmt: element format.
        saturate: clamp magnitudes beyond `fmt.max`, infinities included. When False they become infinity, or NaN
            where the format has no infinity; a format with neither (E3M2, E2M3, E2M1) saturates always.

    Returns:
        uint8 codes of the same shape, right-aligned. NaN keeps its sign in E4M3 and E5M2 (0x7F, 0xFF, as in torch), is
        0x80 in the FNUZ formats, and becomes `fmt.max`, without its sign, in formats without NaN, as CUDA's cuda_fp4.h
        and cuda_fp6.h have it. For E8M0 see `encode_e8m0`, which rounds to nearest here.

    Raises:
        TypeError: `x` is not float32.
    """
    if fmt.is_scale:
        return encode_e8m0(x, saturate=saturate)
    signed = np.atleast_1d(fake_quantize(x, fmt))
    negative, nan = (signed.view(np.uint32) >> np.uint32(31)).astype(np.uint8), np.isnan(signed)
    magnitude = np.abs(signed)
    # A subnormal on top of the smallest normal number has its steps where a normal one has its mantissa.
    subnormal = magnitude < np.float32(fmt.min_normal)
    magnitude += subnormal * np.float32(fmt.min_normal)
    codes = (magnitude.view(np.uint32) >> np.uint32(_F32_MANTISSA_BITS - fmt.mantissa_bits)).astype(np.uint8)
    # Bits beyond the lowest eight are those of float32's bias: dropped, and the rest subtracted in bytes.
    codes -= np.uint8(((_F32_BIAS - fmt.bias) << fmt.mantissa_bits) & 0xFF)
    codes -= subnormal.view(np.uint8) << np.uint8(fmt.mantissa_bits)
    if not saturate:
        codes[np.atleast_1d(overflows(x, fmt))] = fmt.beyond_code
    codes[nan] = fmt.nan_code
    if not fmt.has_nan:
        negative[nan] = 0
    codes |= negative * np.uint8(fmt.sign_bit)
    return codes.reshape(x.shape)[()]  # a scalar of a scalar


def decode(codes: Uint8Array, fmt: Format) -> Float32Array:
    """Values of codes: uint8 of any shape to float32 of the same shape, exact.

    Raises:
        IndexError: a code has more bits than the format.
    """
    return _decode_table(fmt)[codes]


def overflows(scaled: Float32Array, fmt: Format) -> BoolArray:
    """Which scaled values round beyond the largest finite value of `fmt`; infinities do, NaN does not.

    To be asked before any clamp: the saturated cast hides the answer. A negative number is no overflow of E8M0.
    """
    magnitude = scaled if fmt.is_scale else np.abs(scaled)
    threshold = np.float32(fmt.overflow_threshold)
    beyond: BoolArray = magnitude >= threshold if fmt.overflow_at_threshold else magnitude > threshold
    return beyond


@cache
def _decode_table(fmt: Format) -> Float32Array:
    table = np.array([decode_scalar(code, fmt) for code in range(1 << fmt.bits)], dtype=np.float32)
    table.flags.writeable = False
    return table
