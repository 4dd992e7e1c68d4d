"""Codes times factors, and sums in float64."""

from __future__ import annotations

import numpy as np

from fp8debug.formats import Float32Array


def finite(values: Float32Array) -> Float32Array:
    """The values with zero in the place of NaN and infinity."""
    return np.where(np.isfinite(values), values, np.float32(0))


def applied(codes: Float32Array, factors: Float32Array) -> Float32Array:
    """Codes times factors; zero where that is not finite."""
    with np.errstate(all="ignore"):
        return finite(codes * factors)


def square_sum(values: Float32Array) -> float:
    """Sum of squares in float64."""
    return dot(values, values)


def dot(a: Float32Array, b: Float32Array) -> float:
    """Sum of products, in float64."""
    return float(np.einsum("ij,ij->", a, b, dtype=np.float64))
