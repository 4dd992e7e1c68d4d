"""Stochastic rounding: to one of the two neighbours, the nearer the likelier, so that the mean is the value itself."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fp8debug.formats.format import Float32Array, Format, require_float32

_F32_EXPONENT_MASK = np.uint32(0x7F800000)


def stochastic_fake_quantize(x: Float32Array, fmt: Format, rng: np.random.Generator) -> Float32Array:
    """Round to one of the two neighbours in `fmt`, up with probability (x - lower) / (upper - lower).

    The probability is right to 2^-53, so the mean over many draws is x, wherever |x| <= fmt.max. Values of the format
    stay; magnitudes beyond `fmt.max` are saturated, NaN stays NaN, zeros and signs are as in `fake_quantize`.

    Args:
        x: float32, any shape, already multiplied with the scale.
        fmt: element format (or E8M0).
        rng: generator to draw from: one float64 an element.

    Returns:
        float32 of the same shape.

    Raises:
        TypeError: `x` is not float32.
    """
    return round_by_draws(x, fmt, rng.random(x.shape))


def round_by_draws(x: Float32Array, fmt: Format, draws: npt.NDArray[np.float64]) -> Float32Array:
    """`stochastic_fake_quantize` with the draws given: uniform in [0, 1), of the shape of x."""
    require_float32(x)
    with np.errstate(invalid="ignore"):  # signalling NaNs in the input are data, not a mistake
        lowest = np.float32(fmt.min_normal if fmt.is_scale else 0)
        magnitude = np.clip(np.abs(np.atleast_1d(x)), lowest, np.float32(fmt.max))
        power_of_two = (magnitude.view(np.uint32) & _F32_EXPONENT_MASK).view(np.float32)
        step = np.maximum(power_of_two, np.float32(fmt.min_normal)) * np.float32(2.0**-fmt.mantissa_bits)
        steps = magnitude / step  # exact, and so is what is left after the whole steps: powers of two
        whole = np.floor(steps)
        rounded = ((whole + (draws < steps - whole)) * step).astype(np.float32).reshape(x.shape)
        if fmt.is_scale:
            return np.where(x < 0, np.float32(np.nan), rounded)
        rounded = np.copysign(rounded, x)
        return rounded if fmt.has_negative_zero else rounded + np.float32(0)
