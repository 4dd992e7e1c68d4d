"""The formats: what their bits mean, and the numbers that follow from it.

| format | bits | largest | smallest normal | smallest | beyond the largest, not saturated | NaN |
|---|---|---|---|---|---|---|
| E4M3 (FN) | 8 | 448 | 2^-6 | 2^-9 | NaN | 0x7F, 0xFF |
| E5M2 | 8 | 57344 | 2^-14 | 2^-16 | infinity | 0x7F, 0xFF |
| E4M3FNUZ | 8 | 240 | 2^-7 | 2^-10 | NaN | 0x80; no -0 |
| E5M2FNUZ | 8 | 57344 | 2^-15 | 2^-17 | NaN | 0x80; no -0 |
| E3M2 | 6 | 28 | 0.25 | 0.0625 | saturated nevertheless | none |
| E2M3 | 6 | 7.5 | 1 | 0.125 | saturated nevertheless | none |
| E2M1 | 4 | 6 | 1 | 0.5 | saturated nevertheless | none |
| E8M0 | 8 | 2^127 | 2^-127 | 2^-127 | NaN | 0xFF; no sign, no 0 |

Sources: OCP 8-bit Floating Point Specification (OFP8) 1.0 for E4M3 and E5M2; Noune et al., "8-bit Numerical Formats for
Deep Neural Networks" (arXiv:2206.02915) for the FNUZ formats; OCP Microscaling Formats (MX) 1.0 for the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Uint8Array = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Format:
    """One small float format: 1 sign bit (a scale format has none), then exponent bits, then mantissa bits.

    What follows from the layout is computed once and kept as plain numbers.
    """

    name: str
    """Name as it stands in the column `fmt`."""
    exponent_bits: int
    """Width of the exponent field."""
    mantissa_bits: int
    """Stored bits of the significand, the implicit leading one not counted."""
    bias: int
    """What is subtracted from the exponent field."""
    max_code: int
    """Code of `max`."""
    nan_code: int
    """Code written for a positive NaN; `max_code` in formats without NaN, as CUDA's cuda_fp4.h and cuda_fp6.h do."""
    baseline_sqnr_db: float
    """SQNR of bell-shaped tensors at the best scale, in dB: the healthy value. Measured, on a normal distribution."""
    inf_code: int | None = None
    """Code of positive infinity, None in formats without one."""
    has_negative_zero: bool = True
    """Whether a negative value may round to -0; if not, it rounds to 0."""
    is_scale: bool = False
    """Whether it is a format of scales: powers of two, no sign, no zero, no subnormals."""

    max: float = field(init=False)
    """Largest finite value."""
    min_normal: float = field(init=False)
    """Smallest positive value with a full significand."""
    min_subnormal: float = field(init=False)
    """Smallest positive value, and the distance between subnormals."""
    overflow_threshold: float = field(init=False)
    """Midpoint between `max` and the next value the exponent rule would give: where rounding leaves the format."""
    overflow_at_threshold: bool = field(init=False)
    """Whether a magnitude equal to `overflow_threshold` already overflows: the tie goes away from `max`."""
    rounding_floor_sqnr_db: float = field(init=False)
    """Worst SQNR that rounding inside the normal range can give, in dB: 20 log10(2^(mantissa_bits+1) + 1)."""
    max_gain_error: float = field(init=False)
    """Largest relative error of rounding inside the normal range, hence the largest |gain - 1| it can give."""

    def __post_init__(self) -> None:
        exponent, mantissa = divmod(self.max_code, 1 << self.mantissa_bits)
        spacing = math.ldexp(1.0, exponent - self.bias - self.mantissa_bits)  # between the largest values
        largest = spacing * (mantissa + (1 << self.mantissa_bits))
        min_normal = math.ldexp(1.0, -self.bias if self.is_scale else 1 - self.bias)
        max_gain_error = 1 / ((1 << (self.mantissa_bits + 1)) + 1)  # at the first midpoint of a binade
        derived = {
            "max": largest,
            "min_normal": min_normal,
            "min_subnormal": math.ldexp(min_normal, -self.mantissa_bits),
            "overflow_threshold": largest + spacing / 2,
            "overflow_at_threshold": self.is_scale or bool(self.max_code & 1),  # ties to even; those of scales go up
            "rounding_floor_sqnr_db": round(-20 * math.log10(max_gain_error), 1),
            "max_gain_error": max_gain_error,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)  # frozen from here on

    @property
    def bits(self) -> int:
        """Width of a code."""
        return self.exponent_bits + self.mantissa_bits + (0 if self.is_scale else 1)

    @property
    def sign_bit(self) -> int:
        """Bit of a code that makes it negative, 0 in a scale format."""
        return 0 if self.is_scale else 1 << (self.bits - 1)

    @property
    def has_nan(self) -> bool:
        """Whether a code means NaN."""
        return self.nan_code != self.max_code

    @property
    def beyond_code(self) -> int:
        """Code of what is beyond `max` when not saturated: infinity, else NaN, else that of `max` after all."""
        return self.nan_code if self.inf_code is None else self.inf_code


def require_float32(x: npt.NDArray[np.generic]) -> None:
    """Raise TypeError unless `x` is float32: a float64 would be rounded twice on its way to a code."""
    if x.dtype != np.float32:
        raise TypeError(f"expected float32, got {x.dtype}: form float32(x) * float32(scale) first, as the kernels do")


E4M3 = Format("E4M3", 4, 3, bias=7, max_code=0x7E, nan_code=0x7F, baseline_sqnr_db=31.5)
E5M2 = Format("E5M2", 5, 2, bias=15, max_code=0x7B, nan_code=0x7F, baseline_sqnr_db=25.6, inf_code=0x7C)
E4M3FNUZ = Format(
    "E4M3FNUZ", 4, 3, bias=8, max_code=0x7F, nan_code=0x80, baseline_sqnr_db=31.5, has_negative_zero=False
)
E5M2FNUZ = Format(
    "E5M2FNUZ", 5, 2, bias=16, max_code=0x7F, nan_code=0x80, baseline_sqnr_db=25.6, has_negative_zero=False
)
E3M2 = Format("E3M2", 3, 2, bias=3, max_code=0x1F, nan_code=0x1F, baseline_sqnr_db=25.6)
E2M3 = Format("E2M3", 2, 3, bias=1, max_code=0x1F, nan_code=0x1F, baseline_sqnr_db=30.9)
E2M1 = Format("E2M1", 2, 1, bias=1, max_code=0x07, nan_code=0x07, baseline_sqnr_db=18.9)
E8M0 = Format("E8M0", 8, 0, bias=127, max_code=0xFE, nan_code=0xFF, baseline_sqnr_db=14.2, is_scale=True)

ELEMENT_FORMATS: dict[str, Format] = {fmt.name: fmt for fmt in (E4M3, E5M2, E4M3FNUZ, E5M2FNUZ, E3M2, E2M3, E2M1)}
"""Formats that hold elements, signed and with zero, by name."""
FORMATS: dict[str, Format] = {**ELEMENT_FORMATS, E8M0.name: E8M0}
"""All formats by name."""
