"""Element formats and their codecs: float32 values to 8-bit codes and back, bit exact, in numpy.

The cast is the one GPU kernels do: round to nearest, ties to even, gradual underflow, no flush to zero,
values beyond the largest finite one saturated to it (infinities too), NaN kept. Each codec has a slow scalar
twin (`encode_scalar`, `decode_scalar`) in exact arithmetic that shares no code with the fast one.

Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0 for the formats; `__NV_SATFINITE` of CUDA's
cuda_fp8.h for saturation. NaN keeps its sign and gets the code 0x7F or 0xFF, as in torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Uint8Array = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]

_F32_MANTISSA_BITS = 23
_F32_BIAS = 127
_F32_EXPONENT_MASK = np.uint32(0x7F800000)


@dataclass(frozen=True, slots=True)
class Format:
    """One 8-bit float format: 1 sign bit, then exponent bits, then mantissa bits."""

    #: Name as it stands in the column `fmt`.
    name: str
    #: Width of the exponent field.
    exponent_bits: int
    #: Stored bits of the significand, the implicit leading one not counted.
    mantissa_bits: int
    #: What is subtracted from the exponent field.
    bias: int
    #: Largest finite value.
    max: float
    #: Smallest positive value with a full significand.
    min_normal: float
    #: Smallest positive value, and the distance between subnormals.
    min_subnormal: float
    #: Midpoint between `max` and the next value the exponent rule would give: where rounding leaves the format.
    overflow_threshold: float
    #: Whether a magnitude equal to `overflow_threshold` already overflows (the tie goes away from `max`).
    overflow_at_threshold: bool
    #: Code of `max`.
    max_code: int
    #: Code of positive infinity, None in formats without one.
    inf_code: int | None
    #: Code written for a positive NaN.
    nan_code: int
    #: SQNR of bell-shaped tensors at a good scale, in dB: the healthy value.
    baseline_sqnr_db: float
    #: Worst SQNR that rounding inside the normal range can give, in dB: 20 log10(2^(mantissa_bits+1) + 1).
    rounding_floor_sqnr_db: float
    #: Largest relative error of rounding inside the normal range, hence the largest |gain - 1| it can give.
    max_gain_error: float


E4M3 = Format(
    name="E4M3",
    exponent_bits=4,
    mantissa_bits=3,
    bias=7,
    max=448.0,
    min_normal=2.0**-6,
    min_subnormal=2.0**-9,
    overflow_threshold=464.0,
    overflow_at_threshold=False,
    max_code=0x7E,
    inf_code=None,
    nan_code=0x7F,
    baseline_sqnr_db=31.5,
    rounding_floor_sqnr_db=24.6,
    max_gain_error=1 / 17,
)
E5M2 = Format(
    name="E5M2",
    exponent_bits=5,
    mantissa_bits=2,
    bias=15,
    max=57344.0,
    min_normal=2.0**-14,
    min_subnormal=2.0**-16,
    overflow_threshold=61440.0,
    overflow_at_threshold=True,
    max_code=0x7B,
    inf_code=0x7C,
    nan_code=0x7F,
    baseline_sqnr_db=25.6,
    rounding_floor_sqnr_db=19.1,
    max_gain_error=1 / 9,
)
FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in (E4M3, E5M2)}


def fake_quantize(x: Float32Array, fmt: Format) -> Float32Array:
    """Round to the nearest value of `fmt` and return it as float32: decode(encode(x)) in one go.

    Args:
        x: float32, any shape, already multiplied with the scale.
        fmt: element format.

    Returns:
        float32 of the same shape; saturated, signs of zeros kept, NaN stays NaN.

    Raises:
        TypeError: `x` is not float32 (a float64 would be rounded twice).
    """
    _require_float32(x)
    with np.errstate(invalid="ignore"):  # signalling NaNs in the input are data, not a mistake
        magnitude = np.abs(np.atleast_1d(x))
        np.minimum(magnitude, np.float32(fmt.max), out=magnitude)
        # Adding 2^(e + 23 - m) leaves exactly m bits below the leading one, and the float32 adder rounds to even.
        power_of_two = (magnitude.view(np.uint32) & _F32_EXPONENT_MASK).view(np.float32)
        np.maximum(power_of_two, np.float32(fmt.min_normal), out=power_of_two)
        power_of_two *= np.float32(2.0 ** (_F32_MANTISSA_BITS - fmt.mantissa_bits))
        magnitude += power_of_two
        magnitude -= power_of_two
        return np.copysign(magnitude, x).reshape(x.shape)


def encode(x: Float32Array, fmt: Format, *, saturate: bool = True) -> Uint8Array:
    """Cast float32 values to the codes of `fmt`.

    Args:
        x: float32, any shape, already multiplied with the scale.
        fmt: element format.
        saturate: clamp magnitudes beyond `fmt.max`, infinities included. When False they become infinity, or NaN
            where the format has no infinity.

    Returns:
        uint8 codes of the same shape.

    Raises:
        TypeError: `x` is not float32.
    """
    rounded = np.abs(fake_quantize(x, fmt))
    normal = rounded >= np.float32(fmt.min_normal)
    shift = _F32_MANTISSA_BITS - fmt.mantissa_bits
    rebias = (_F32_BIAS - fmt.bias) << fmt.mantissa_bits
    from_bits = (rounded.view(np.uint32) >> np.uint32(shift)).astype(np.int32) - np.int32(rebias)
    with np.errstate(invalid="ignore"):  # NaN to integer: replaced below
        from_steps = (rounded * np.float32(1 / fmt.min_subnormal)).astype(np.int32)
    codes = np.where(normal, from_bits, from_steps)
    if not saturate:
        beyond = fmt.nan_code if fmt.inf_code is None else fmt.inf_code
        codes = np.where(overflows(x, fmt), beyond, codes)
    codes = np.where(np.isnan(x), fmt.nan_code, codes)
    return (codes | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def decode(codes: Uint8Array, fmt: Format) -> Float32Array:
    """Values of codes: uint8 of any shape to float32 of the same shape, exact."""
    return _decode_table(fmt)[codes]


def overflows(scaled: Float32Array, fmt: Format) -> BoolArray:
    """Which scaled values round beyond the largest finite value of `fmt`; infinities do, NaN does not.

    To be asked before any clamp: the saturated cast hides the answer.
    """
    magnitude = np.abs(scaled)
    threshold = np.float32(fmt.overflow_threshold)
    beyond: BoolArray = magnitude >= threshold if fmt.overflow_at_threshold else magnitude > threshold
    return beyond


def encode_scalar(x: float, fmt: Format, *, saturate: bool = True) -> int:
    """Slow exact twin of `encode` for one value.

    `x` is any Python float. Division by a power of two is exact and `round` ties to even, so there is one rounding.
    """
    sign = 0x80 if math.copysign(1.0, x) < 0 else 0
    if math.isnan(x):
        return sign | fmt.nan_code
    beyond = fmt.max_code
    if not saturate:
        beyond = fmt.nan_code if fmt.inf_code is None else fmt.inf_code
    if math.isinf(x):
        return sign | beyond
    if x == 0:
        return sign
    exponent = max(math.frexp(x)[1] - 1, 1 - fmt.bias)  # of the leading bit; subnormals share the lowest
    steps = round(abs(x) / math.ldexp(1.0, exponent - fmt.mantissa_bits))
    # A field of zero means subnormal; a round-up carries into the exponent by itself.
    code = ((exponent + fmt.bias - 1) << fmt.mantissa_bits) + steps
    return sign | (code if code <= fmt.max_code else beyond)


def decode_scalar(code: int, fmt: Format) -> float:
    """Slow exact twin of `decode` for one code in 0..255."""
    sign = -1.0 if code & 0x80 else 1.0
    magnitude = code & 0x7F
    if magnitude == fmt.inf_code:
        return sign * math.inf
    if magnitude > fmt.max_code:
        return math.nan
    field, mantissa = divmod(magnitude, 1 << fmt.mantissa_bits)
    if field > 0:
        mantissa += 1 << fmt.mantissa_bits
    return sign * math.ldexp(mantissa, max(field, 1) - fmt.bias - fmt.mantissa_bits)


def _require_float32(x: Float32Array) -> None:
    if x.dtype != np.float32:
        raise TypeError(f"expected float32, got {x.dtype}: form float32(x) * float32(scale) first, as the kernels do")


@cache
def _decode_table(fmt: Format) -> Float32Array:
    table = np.array([decode_scalar(code, fmt) for code in range(256)], dtype=np.float32)
    table.flags.writeable = False
    return table
