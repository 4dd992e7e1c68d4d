"""The slow exact twins, one value at a time: what the fast codecs are judged by."""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from functools import cache

from fp8debug.formats.e8m0 import encode_e8m0_scalar
from fp8debug.formats.format import Format


def encode_scalar(x: float, fmt: Format, *, saturate: bool = True) -> int:
    """Slow exact twin of `encode` for one value.

    `x` is any Python float. Division by a power of two is exact and `round` ties to even, so there is one rounding.
    """
    if fmt.is_scale:
        return encode_e8m0_scalar(x, saturate=saturate)
    sign = fmt.sign_bit if math.copysign(1.0, x) < 0 else 0
    if math.isnan(x):
        return fmt.nan_code | (sign if fmt.has_nan else 0)
    beyond = sign | (fmt.max_code if saturate else fmt.beyond_code)
    if math.isinf(x):
        return beyond
    lowest = 1 - fmt.bias
    exponent = max(math.frexp(x)[1] - 1, lowest) if x else lowest  # of the leading bit; subnormals share the lowest
    steps = round(abs(x) / math.ldexp(1.0, exponent - fmt.mantissa_bits))
    # A field of zero means subnormal; a round-up carries into the exponent by itself.
    code = ((exponent + fmt.bias - 1) << fmt.mantissa_bits) + steps
    if code == 0 and not fmt.has_negative_zero:
        return 0
    return sign | code if code <= fmt.max_code else beyond


def decode_scalar(code: int, fmt: Format) -> float:
    """Slow exact twin of `decode` for one code; raises IndexError when it has more bits than the format."""
    if not 0 <= code < 1 << fmt.bits:
        raise IndexError(f"code {code} of {fmt.name}: expected 0 to {(1 << fmt.bits) - 1}")
    magnitude = code & ~fmt.sign_bit
    sign = -1.0 if code & fmt.sign_bit else 1.0
    if magnitude == fmt.inf_code:
        return sign * math.inf
    if magnitude > fmt.max_code or (fmt.has_nan and code == fmt.nan_code):
        return math.nan
    field, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    if field > 0 or fmt.is_scale:
        mantissa += 1 << fmt.mantissa_bits
    lowest_field = 0 if fmt.is_scale else 1  # a field of zero means subnormal, with the exponent of the next
    return sign * math.ldexp(mantissa, max(field, lowest_field) - fmt.bias - fmt.mantissa_bits)


def round_by_draw_scalar(x: float, fmt: Format, draw: float) -> float:
    """Slow exact twin of `round_by_draws` for one value and one draw, in rational numbers."""
    if math.isnan(x) or (fmt.is_scale and x < 0):
        return math.nan
    values = _magnitudes(fmt)
    magnitude = min(max(abs(x), values[0]), values[-1])
    place = bisect_right(values, magnitude) - 1
    lower = values[place]
    if lower < magnitude:
        upper = values[place + 1]
        share = (Fraction(magnitude) - Fraction(lower)) / (Fraction(upper) - Fraction(lower))
        lower = upper if Fraction(draw) < share else lower
    if fmt.is_scale or (lower == 0 and not fmt.has_negative_zero):
        return lower
    return math.copysign(lower, x)


@cache
def _magnitudes(fmt: Format) -> list[float]:
    """All finite magnitudes of `fmt`, ascending."""
    return [decode_scalar(code, fmt) for code in range(fmt.max_code + 1)]
