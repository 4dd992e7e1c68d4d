"""Element and scale formats of 4 to 8 bits, and their codecs: bit exact, in numpy.

The cast is the one GPU kernels do: round to nearest, ties to even, gradual underflow, no flush to zero,
magnitudes beyond the largest finite one saturated to it (infinities too), NaN kept where the format has one.
Stochastic rounding is the alternative, `encode(..., saturate=False)` the other answer to an overflow.

Each function has a slow scalar twin in exact arithmetic that shares no code with it.
"""

from fp8debug.formats.codec import decode, encode, fake_quantize, overflows
from fp8debug.formats.e8m0 import Rounding, encode_e8m0, encode_e8m0_scalar
from fp8debug.formats.format import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
    ELEMENT_FORMATS,
    FORMATS,
    BoolArray,
    Float32Array,
    Format,
    Uint8Array,
)
from fp8debug.formats.scalar import decode_scalar, encode_scalar, round_by_draw_scalar
from fp8debug.formats.stochastic import round_by_draws, stochastic_fake_quantize

__all__ = [
    "E2M1",
    "E2M3",
    "E3M2",
    "E4M3",
    "E4M3FNUZ",
    "E5M2",
    "E5M2FNUZ",
    "E8M0",
    "ELEMENT_FORMATS",
    "FORMATS",
    "BoolArray",
    "Float32Array",
    "Format",
    "Rounding",
    "Uint8Array",
    "decode",
    "decode_scalar",
    "encode",
    "encode_e8m0",
    "encode_e8m0_scalar",
    "encode_scalar",
    "fake_quantize",
    "overflows",
    "round_by_draw_scalar",
    "round_by_draws",
    "stochastic_fake_quantize",
]
