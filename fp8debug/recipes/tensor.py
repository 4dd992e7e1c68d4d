"""Recipes with one scale a tensor that need no memory: the tensor's own amax says everything."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fp8debug.formats import BoolArray, Float32Array, Format, fake_quantize, overflows
from fp8debug.recipes.base import (
    FLT_MAX,
    Recipe,
    bad_value,
    is_integer,
    is_number,
    quotient,
    require_choice,
    require_flags,
    scale_inv,
)

BFLOAT16 = Format("BF16", 8, 7, bias=127, max_code=0x7F7F, inf_code=0x7F80, nan_code=0x7FC0, baseline_sqnr_db=55.6)
"""What the recipe `bf16` casts to. No format of `formats`: its codes have 16 bits."""

_TORCHAO_EPSILON = 1e-12  # `EPS` of torchao/float8/float8_utils.py
_ONE = np.float32(1.0)


def scaled_cast(values: Float32Array, scale: np.float32, fmt: Format) -> tuple[Float32Array, BoolArray]:
    """Quantise with one scale and undo it: float32(code(values * scale)) * float32(1 / scale).

    Args:
        values: float32, any shape.
        scale: the factor before the cast.
        fmt: element format.

    Returns:
        The dequantised values, float32, and where values * scale rounds beyond the largest finite value of `fmt`;
        both in the shape of `values`.
    """
    # Infinities from an extreme scale are what a GPU would produce as well.
    with np.errstate(all="ignore"):
        scaled = values * scale
        return fake_quantize(scaled, fmt) * scale_inv(scale), overflows(scaled, fmt)


@dataclass(frozen=True, kw_only=True)
class TensorRecipe(Recipe):
    """One scale a tensor, from its amax alone."""

    is_plain: ClassVar[bool] = True
    """Whether `scale` alone says everything: then `round` is `scaled_cast` with it."""

    def scale(self, amax: float, fmt: Format) -> np.float32:
        """Factor before the cast for a tensor whose largest magnitude is `amax` (a float32 value)."""
        raise NotImplementedError

    def round(self, values: Float32Array, amax: float, amin: float, fmt: Format) -> tuple[Float32Array, BoolArray]:
        """Quantise and dequantise values of a tensor.

        Args:
            values: float32, any shape; all of the tensor or some of it.
            amax: largest magnitude of the tensor.
            amin: smallest non-zero magnitude of the tensor.
            fmt: element format.

        Returns:
            The dequantised values, float32, and where rounding goes beyond the largest finite value of `fmt`; both in
            the shape of `values`.
        """
        return scaled_cast(values, self.scale(amax, fmt), fmt)


@dataclass(frozen=True, kw_only=True)
class CurrentScaling(TensorRecipe):
    """The scale of each tensor follows from its own amax."""

    kind: ClassVar[str] = "current"
    power_of_two: bool = False
    """Round the scale down to a power of two."""
    amax_epsilon: float = 0.0
    """Smaller amaxes are replaced by this."""
    flavour: str = "te"
    """te: `compute_scale_from_amax` of Transformer Engine's recipe_common.cuh | torchao: its `amax_to_scale`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.amax_epsilon) or not 0 <= self.amax_epsilon <= FLT_MAX:
            raise bad_value(self.kind, "amax_epsilon", self.amax_epsilon, "a finite number, 0 or more")
        require_flags(self, "power_of_two")
        require_choice(self, "flavour", ("te", "torchao"))

    def scale(self, amax: float, fmt: Format) -> np.float32:
        """Scale for a tensor whose largest magnitude is `amax` (a float32 value).

        te: 1 when amax is 0, infinite or NaN; the largest float32 when the quotient overflows.
        torchao: amax is at least 1e-12; 0 when it is infinite, NaN when it is NaN.
        """
        epsilon = float(np.float32(self.amax_epsilon))
        if self.flavour == "torchao":
            epsilon = max(epsilon, _TORCHAO_EPSILON)
        if amax < epsilon:
            amax = epsilon
        if not 0 < amax < math.inf:
            return _ONE if self.flavour == "te" else np.float32(fmt.max / amax)
        scale = quotient(fmt.max, amax)
        if self.power_of_two:
            scale = np.float32(math.ldexp(1.0, math.frexp(scale)[1] - 1))
        return scale


@dataclass(frozen=True, kw_only=True)
class Static(TensorRecipe):
    """One scale for good, as a calibration or a checkpoint gives it."""

    kind: ClassVar[str] = "static"
    value: float = field(default=1.0, metadata={"parameter": "scale"})
    """Factor before the cast; `scale` in texts."""
    set_at_step: int = 0
    """Step at which it was determined: said, not used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # Both bounds: what is too large for float32 must not be cast to it, what is too small becomes 0 in it.
        if not is_number(self.value) or not 0 < self.value <= FLT_MAX or np.float32(self.value) == 0:
            raise bad_value(self.kind, "scale", self.value, "a positive, finite float32")
        if not is_integer(self.set_at_step) or self.set_at_step < 0:
            raise bad_value(self.kind, "set_at_step", self.set_at_step, "an integer, 0 or more")

    def scale(self, amax: float, fmt: Format) -> np.float32:
        """The given scale, whatever the amax."""
        return np.float32(self.value)


@dataclass(frozen=True, kw_only=True)
class BF16(TensorRecipe):
    """No FP8 at all: what BF16 itself leaves of an FP32 tensor; BF16 tensors are unchanged."""

    kind: ClassVar[str] = "bf16"
    is_plain: ClassVar[bool] = False
    choices: ClassVar[tuple[str, ...]] = ("BF16",)
    fp8_format: str = "BF16"

    def formats_for(self, tensor: str) -> tuple[tuple[Format, bool], ...]:
        """BF16 for every tensor."""
        return ((BFLOAT16, False),)

    def scale(self, amax: float, fmt: Format) -> np.float32:
        """1."""
        return _ONE

    def round(self, values: Float32Array, amax: float, amin: float, fmt: Format) -> tuple[Float32Array, BoolArray]:
        """Round to the nearest BF16, ties to even; infinity beyond its largest finite value, as the casts do."""
        return round_bf16(values), overflows(values, BFLOAT16)


def round_bf16(values: Float32Array) -> Float32Array:
    """Nearest BF16 values, ties to even, as float32 of the same shape; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), values, rounded.view(np.float32))


@dataclass(frozen=True, kw_only=True)
class RangeExpansion(TensorRecipe):
    """COAT's dynamic range expansion: sign(x)|x|^k is scaled and cast, the root is taken afterwards.

    Source: arXiv:2410.19313. For optimizer states, whose range is far smaller than the format's.
    """

    kind: ClassVar[str] = "coat"
    is_plain: ClassVar[bool] = False
    k: float = 0.0
    """Exponent; 0: log(range of the format) / log(amax / amin), at least 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.k) or not (self.k == 0 or 1 <= self.k <= FLT_MAX):
            raise bad_value(self.kind, "k", self.k, "0 or a finite number of at least 1")

    def scale(self, amax: float, fmt: Format) -> np.float32:
        """Factor that brings `amax` to the largest finite value, as current scaling has it: the one for k = 1."""
        return CurrentScaling().scale(amax, fmt)

    def exponent(self, amax: float, amin: float, fmt: Format) -> float:
        """k: given, or the one that stretches the tensor's range to the format's (largest over smallest value)."""
        if self.k:
            return self.k
        log_range = math.log(amax / amin) if 0 < amin < amax < math.inf else 0.0
        return max(1.0, math.log(fmt.max / fmt.min_subnormal) / log_range) if log_range else 1.0

    def round(self, values: Float32Array, amax: float, amin: float, fmt: Format) -> tuple[Float32Array, BoolArray]:
        """As in `TensorRecipe`. Powers in float64, relative to amax so that none leaves its range; the cast is exact.

        Without a usable amax (0, infinite, NaN) it is a cast with scale 1.
        """
        if not 0 < amax < math.inf:
            return scaled_cast(values, _ONE, fmt)
        k = self.exponent(amax, amin, fmt)
        with np.errstate(all="ignore"):  # values beyond the given amax may overflow
            expanded = (np.abs(values.astype(np.float64)) / amax) ** k * fmt.max
            scaled = expanded.astype(np.float32)
            rounded = fake_quantize(scaled, fmt).astype(np.float64)
            magnitude = (rounded / fmt.max) ** (1 / k) * amax
        return np.copysign(magnitude.astype(np.float32), values), overflows(scaled, fmt)
