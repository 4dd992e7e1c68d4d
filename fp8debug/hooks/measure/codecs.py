"""The codecs of `fp8debug.formats` in torch, bit equal to them, on the tensor's device.

torch's own casts to float8 are used where it has them, saturating or not depending on version, device and format: so
the clamp is always explicit. It has no casts to FP6, none to FP4 on the CPU, and its E8M0 ignores the sign and rounds
everything between 2^-127 and 2^-126 up: these formats are computed here, and their codes are uint8.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fp8debug.formats import E8M0, Format, Rounding, e8m0
from fp8debug.hooks.dtypes import FP8

_EXPONENT_MASK = 0x7F80_0000
_MANTISSA_BITS = 23
_BIAS = 127


def encode(t: Tensor, fmt: Format, *, saturate: bool = True) -> Tensor:
    """Cast to `fmt`: round to nearest even, keep NaN where the format has one; policies as in `formats.encode`.

    Args:
        t: float32, bfloat16 or float16 of any shape, already multiplied with the scale.
        fmt: element format, or E8M0.
        saturate: clamp magnitudes beyond `fmt.max`, infinities included, instead of making them infinite or NaN.

    Returns:
        For the FP8 formats a float8 tensor of the same shape, whose `.view(torch.uint8)` gives the codes; for the
        others the codes, uint8.

    Raises:
        TypeError: another dtype (torch rounds float64 twice on its way to float8).
    """
    x = _as_float32(t)
    if fmt.is_scale:
        return encode_e8m0(x, saturate=saturate)
    if fmt.name not in FP8:
        return _codes(x, fmt)
    cast = x.clamp(-fmt.max, fmt.max).to(FP8[fmt.name])
    if saturate:
        return cast
    codes = cast.view(torch.uint8)
    beyond = (codes & fmt.sign_bit) | fmt.beyond_code
    return torch.where(overflows(x, fmt), beyond, codes).view(cast.dtype)


def encode_e8m0(t: Tensor, rounding: Rounding = "nearest", *, saturate: bool = True) -> Tensor:
    """Twin of `formats.encode_e8m0`: uint8 codes of the shape of `t`. Dtypes and errors as in `encode`."""
    x = _as_float32(t)
    bits = x.abs().view(torch.int32)
    codes = (bits + e8m0.ADDED[rounding]) >> _MANTISSA_BITS
    codes = torch.where(bits <= e8m0.LAST_SMALLEST[rounding], 0, codes)
    if saturate:
        codes = codes.clamp(max=E8M0.max_code)
    invalid = x.isnan() | (x < 0)
    if not saturate:
        invalid |= x == 0
    return torch.where(invalid, E8M0.nan_code, codes).to(torch.uint8)


def decode(codes: Tensor, fmt: Format) -> Tensor:
    """Values of codes: float32 of the same shape, exact.

    Args:
        codes: what `encode` returns: float8 (or its bits, uint8) for the FP8 formats, uint8 for the others. Bits above
            those of the format are ignored.
        fmt: format they are in.
    """
    if fmt.name in FP8:
        return codes.view(FP8[fmt.name]).float()
    code = codes.to(torch.int32)
    if fmt.is_scale:
        values = (code << _MANTISSA_BITS).view(torch.float32)
        values = torch.where(code == 0, fmt.min_normal, values)
        return torch.where(code == fmt.nan_code, torch.nan, values)
    magnitude = code & (fmt.sign_bit - 1)
    bits = (magnitude << (_MANTISSA_BITS - fmt.mantissa_bits)) + ((_BIAS - fmt.bias) << _MANTISSA_BITS)
    values = bits.view(torch.float32)
    values = torch.where(magnitude < 1 << fmt.mantissa_bits, magnitude * fmt.min_subnormal, values)
    return torch.where((code & fmt.sign_bit) != 0, -values, values)


def fake_quantize(t: Tensor, fmt: Format) -> Tensor:
    """Round to the nearest value of `fmt`; float32 of the same shape. Arguments and errors as in `encode`.

    NaN stays NaN even in formats without one.
    """
    # Back from E4M3 is the CPU's slowest cast, three times as long as to do without it.
    does_without = fmt.name == "E4M3" and t.device.type == "cpu"
    if fmt.is_scale or (fmt.name in FP8 and not does_without):
        return decode(encode(t, fmt), fmt)
    return _rounded(_as_float32(t), fmt)


def stochastic_fake_quantize(t: Tensor, fmt: Format, generator: torch.Generator) -> Tensor:
    """Round to one of the two neighbours, so that the mean is the value; see `formats.stochastic_fake_quantize`.

    Args:
        t: as in `encode`.
        fmt: element format, or E8M0.
        generator: of the tensor's device; one float64 an element is drawn (float32 on MPS, which has no other).

    Returns:
        float32 of the same shape.

    Raises:
        TypeError: another dtype.
    """
    x = _as_float32(t)
    wide = torch.float32 if x.device.type == "mps" else torch.float64
    return round_by_draws(x, fmt, torch.rand(x.shape, generator=generator, dtype=wide, device=x.device))


def round_by_draws(t: Tensor, fmt: Format, draws: Tensor) -> Tensor:
    """`stochastic_fake_quantize` with the draws given: uniform in [0, 1), of the shape of `t`."""
    x = _as_float32(t)
    magnitude = x.abs().clamp(fmt.min_normal if fmt.is_scale else 0.0, fmt.max)
    step = _power_of_two(magnitude, fmt) * 2.0**-fmt.mantissa_bits
    steps = magnitude / step
    whole = steps.floor()
    rounded = (whole + (draws < steps - whole)) * step
    if fmt.is_scale:
        return torch.where(x < 0, torch.nan, rounded)
    rounded = rounded.copysign(x)
    return rounded if fmt.has_negative_zero else rounded + 0.0


def overflows(scaled: Tensor, fmt: Format) -> Tensor:
    """Twin of `formats.overflows`: bool of the same shape, to be asked before any clamp."""
    magnitude = scaled if fmt.is_scale else scaled.abs()
    return magnitude >= fmt.overflow_threshold if fmt.overflow_at_threshold else magnitude > fmt.overflow_threshold


def _as_float32(t: Tensor) -> Tensor:
    if t.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"expected float32, bfloat16 or float16, got {t.dtype}: form t.float() * scale first")
    return t.detach().float()


def _power_of_two(magnitude: Tensor, fmt: Format) -> Tensor:
    """2^exponent of each magnitude, from its bits; at least the smallest normal of `fmt`."""
    return (magnitude.view(torch.int32) & _EXPONENT_MASK).view(torch.float32).clamp(min=fmt.min_normal)


def _rounded(x: Tensor, fmt: Format) -> Tensor:
    magnitude = x.abs().clamp_(max=fmt.max)  # in place from here on: a third of the time is in new memory
    # Adding 2^(e + 23 - m) leaves exactly m bits below the leading one, and the float32 adder rounds to even.
    power_of_two = _power_of_two(magnitude, fmt).mul_(2.0 ** (_MANTISSA_BITS - fmt.mantissa_bits))
    return magnitude.add_(power_of_two).sub_(power_of_two).copysign_(x)


def _codes(x: Tensor, fmt: Format) -> Tensor:
    """uint8 codes of the formats without NaN, whose zeros are signed."""
    rounded = _rounded(x, fmt)
    magnitude = rounded.abs()
    rebias = (_BIAS - fmt.bias) << fmt.mantissa_bits
    from_bits = (magnitude.view(torch.int32) >> (_MANTISSA_BITS - fmt.mantissa_bits)) - rebias
    from_steps = (magnitude / fmt.min_subnormal).to(torch.int32)
    codes = torch.where(magnitude >= fmt.min_normal, from_bits, from_steps)
    codes = codes | torch.where(rounded.signbit(), fmt.sign_bit, 0)
    return torch.where(x.isnan(), fmt.nan_code, codes).to(torch.uint8)
