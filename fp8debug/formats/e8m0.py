"""E8M0, the format of MX block scales: the codec, whose rounding the scale rules choose.

A code c means 2^(c - 127), 0xFF means NaN. There is no sign and no zero, so not every number has a neighbour: zero and
magnitudes below 2^-127 become 2^-127, the smallest (zero becomes NaN when not saturated); negative numbers become NaN.
torch ignores the sign and ml_dtypes makes zero NaN. Both round everything between 2^-127 and 2^-126 up; here the
nearest is taken there too.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from fp8debug.formats.format import E8M0, Float32Array, Uint8Array, require_float32

Rounding = Literal["nearest", "up", "down"]
"""nearest: ties, 1.5 * 2^k, go up, as in torch and ml_dtypes; they are also the even ones at one significant bit.
up: as `cvt.rp` of PTX, so that nothing scaled overflows. down: as `cvt.rz`."""

_HALF = 0x0040_0000  # of a float32 binade, in units of its last bit; also the bits of 2^-127
ADDED = {"nearest": _HALF, "up": 2 * _HALF - 1, "down": 0}
# float32 has 22 bits below 2^-127, where E8M0 ends: up to here everything is 2^-127, and carries would be wrong.
LAST_SMALLEST = {"nearest": _HALF + _HALF // 2 - 1, "up": _HALF, "down": 2 * _HALF - 1}


def encode_e8m0(x: Float32Array, rounding: Rounding = "nearest", *, saturate: bool = True) -> Uint8Array:
    """Exponents of the powers of two next to x, as E8M0 codes, taken from the bits of x: no logarithm.

    Args:
        x: float32, any shape.
        rounding: see Rounding.
        saturate: 2^127 for what is beyond it, infinity included, and 2^-127 for zero; when False both become NaN.

    Returns:
        uint8 codes of the same shape; NaN (0xFF) for NaN and negative numbers.

    Raises:
        TypeError: `x` is not float32.
    """
    require_float32(x)
    bits = np.abs(x).view(np.uint32)
    codes = (bits + np.uint32(ADDED[rounding])) >> np.uint32(23)
    codes = np.where(bits <= LAST_SMALLEST[rounding], np.uint32(0), codes)
    if saturate:
        codes = np.minimum(codes, E8M0.max_code)
    invalid = np.isnan(x) | (x < 0)
    if not saturate:
        invalid |= x == 0
    return np.where(invalid, E8M0.nan_code, codes).astype(np.uint8)


def encode_e8m0_scalar(x: float, rounding: Rounding = "nearest", *, saturate: bool = True) -> int:
    """Slow exact twin of `encode_e8m0` for one value."""
    if math.isnan(x) or x < 0:
        return E8M0.nan_code
    if x == 0 or math.isinf(x):
        within = E8M0.max_code if x else 0
        return within if saturate else E8M0.nan_code
    fraction, exponent = math.frexp(x)  # x = 2 * fraction * 2^(exponent - 1), 1 <= 2 * fraction < 2
    goes_up = {"nearest": fraction >= 0.75, "up": fraction > 0.5, "down": False}[rounding]
    code = exponent - 1 + goes_up + E8M0.bias
    if code > E8M0.max_code:
        return E8M0.max_code if saturate else E8M0.nan_code
    return max(code, 0)
