"""Compiled error sums, over a histogram and over FP32 memory; the definitions are those of fp8debug.metrics.

The rounding is that of fp8debug.formats.fake_quantize: adding and taking away 2^(e + 23 - m) leaves m bits below the
leading one. It must not be compiled with fastmath, which would cancel the two; its callers may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from fp8debug.formats import Format
from fp8debug.hooks.measure.counting.jit import kernel
from fp8debug.metrics import ErrorSums, low_order, n_low_of

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# Columns of a row of parameters, one row a request.
SCALE, INVERSE, LARGEST, MIN_NORMAL, FACTOR, THRESHOLD = range(6)
N_PARAMETERS = 6

REORDER = ("reassoc", "nsz")
"""Lets sums be taken in lanes; numba's other flags would spoil infinities and NaN."""

MANTISSA_BITS = 23
"""Of FP32."""
PIECE = 1 << 16
"""Elements summed at once; adding the sums of pieces keeps the rounding error of long tensors low."""

_EXPONENT = np.uint32(0x7F800000)
_INF = np.float32(np.inf)


@kernel("float32(float32)")
def _power_of_two(magnitude: np.float32) -> np.float32:
    """Largest power of two that is not above `magnitude`; 0 for a subnormal."""
    exponent = np.float32(magnitude).view(np.uint32) & _EXPONENT
    return np.uint32(exponent).view(np.float32)


@kernel("float32(float32, float32[::1])")
def _round(scaled: np.float32, row: Float32) -> np.float32:
    """Round a scaled value to the format, saturating; its magnitude only."""
    magnitude = min(abs(scaled), row[LARGEST])
    power = max(_power_of_two(magnitude), row[MIN_NORMAL]) * row[FACTOR]
    rounded: np.float32 = (magnitude + power) - power
    return rounded


@kernel("Tuple((int64, int64, boolean))(float32[::1], int64[::1], float32[::1], int64[::1])")
def rank(values: Float32, counts: Int64, ranked: Float32, ranked_counts: Int64) -> tuple[int, int, bool]:
    """Merge the two runs of a histogram in code order into one by magnitude, signs together and zeros left out.

    Returns:
        Number of magnitudes, elements equal to zero, and whether the histogram was finite and in code order.
    """
    middle = 0
    while middle < values.size and not np.signbit(values[middle]):
        middle += 1
    i, j, size, zeros = 0, middle, 0, 0
    last = np.float32(0)
    while i < middle or j < values.size:
        positive = values[i] if i < middle else _INF
        negative = -values[j] if j < values.size else _INF
        magnitude, count = min(positive, negative), 0
        if not (last <= magnitude and magnitude < _INF):
            return size, zeros, False
        last = magnitude
        if positive == magnitude:
            count += counts[i]
            i += 1
        if negative == magnitude:
            count += counts[j]
            j += 1
        if magnitude == 0:
            zeros += count
        else:
            ranked[size], ranked_counts[size] = magnitude, count
            size += 1
    return size, zeros, True


@kernel("void(int64[::1], int64, float64[::1], float64[::1])")
def weigh(counts: Int64, n_low: int, weights: Float64, low_weights: Float64) -> None:
    """Write the counts as float64, and how many of each are among the first `n_low` elements."""
    left = n_low
    for i in range(counts.size):
        low = min(counts[i], left)
        left -= low
        weights[i] = counts[i]
        low_weights[i] = low


@kernel("UniTuple(float64, 8)(float32[::1], float64[::1], float64[::1], float32[::1])", fastmath=REORDER)
def _weighted_sums(x: Float32, weights: Float64, low_weights: Float64, row: Float32) -> tuple[float, ...]:
    """Sum over a histogram: all x positive, since no sum changes with the sign."""
    x2 = q2 = xq = err2 = low_x2 = low_err2 = underflow = overflow = 0.0
    for i in range(x.size):
        scaled = x[i] * row[SCALE]
        rounded = _round(scaled, row) * row[INVERSE]
        value, q, weight, low = np.float64(x[i]), np.float64(rounded), weights[i], low_weights[i]
        error = value - q
        square, error = value * value, error * error
        x2 += weight * square
        q2 += weight * (q * q)
        xq += weight * (value * q)
        err2 += weight * error
        low_x2 += low * square
        low_err2 += low * error
        underflow += weight if rounded == 0 else 0.0
        overflow += weight if scaled > row[THRESHOLD] else 0.0
    return x2, q2, xq, err2, low_x2, low_err2, underflow, overflow


@kernel("void(float32[::1], float64[::1], float64[::1], float32[:, ::1], float64[:, ::1])")
def _sums_of_all(x: Float32, weights: Float64, low_weights: Float64, rows: Float32, found: Float64) -> None:
    for i in range(rows.shape[0]):
        sums = _weighted_sums(x, weights, low_weights, rows[i])
        for j in range(8):
            found[i, j] = sums[j]


@kernel("UniTuple(float64, 8)(float32[::1], float32[::1])", fastmath=REORDER)
def _block_sums(x: Float32, row: Float32) -> tuple[float, ...]:
    """Sum over elements; returns the four sums, then underflow, overflow, finite and non-zero elements."""
    x2 = q2 = xq = err2 = 0.0
    underflow, overflow, finite, nonzero = 0, 0, 0, 0
    for i in range(x.size):
        magnitude = abs(x[i])
        is_finite = magnitude < _INF
        magnitude = magnitude if is_finite else np.float32(0)
        scaled = magnitude * row[SCALE]
        rounded = _round(scaled, row) * row[INVERSE]
        # An infinite inverse makes no NaN of a zero: zeros are left out of a histogram's sums as well.
        rounded = rounded if magnitude != 0 else np.float32(0)
        value, q = np.float64(magnitude), np.float64(rounded)
        error = value - q
        x2 += value * value
        q2 += q * q
        xq += value * q
        err2 += error * error
        finite += int(is_finite)
        nonzero += int(magnitude != 0)
        underflow += int((rounded == 0) & (magnitude != 0))
        overflow += int(scaled > row[THRESHOLD])
    return x2, q2, xq, err2, underflow, overflow, finite, nonzero


def parameter_rows(requests: Sequence[tuple[np.float32, Format]]) -> Float32:
    """Return what the kernels need of each (scale, format), (requests, N_PARAMETERS)."""
    rows = np.empty((len(requests), N_PARAMETERS), np.float32)
    for i, (scale, fmt) in enumerate(requests):
        rows[i] = _format_row(fmt)
        rows[i, SCALE] = scale
    with np.errstate(over="ignore", divide="ignore"):
        rows[:, INVERSE] = np.float32(1) / rows[:, SCALE]
    return rows


@cache
def _format_row(fmt: Format) -> Float32:
    threshold = np.float32(fmt.overflow_threshold)
    if fmt.overflow_at_threshold:  # "beyond the next value below" says "at or beyond"
        threshold = np.nextafter(threshold, np.float32(0))
    factor = 2.0 ** (MANTISSA_BITS - fmt.mantissa_bits)
    return np.array((0.0, 0.0, fmt.max, fmt.min_normal, factor, threshold), np.float32)


def of_histogram(values: Float32, counts: Int64, requests: Sequence[tuple[np.float32, Format]]) -> list[ErrorSums]:
    """Error sums of a histogram for each (scale, format); values in code order are the fast case."""
    values, counts = np.ascontiguousarray(values, np.float32), np.ascontiguousarray(counts, np.int64)
    x, x_counts = np.empty_like(values), np.empty_like(counts)
    size, n_zero, in_order = rank(values, counts, x, x_counts)
    x, x_counts = x[:size], x_counts[:size]
    if not in_order:
        order = low_order(values)
        x, x_counts = np.abs(values[order]), counts[order]
        n_zero = int(counts[values == 0].sum())
    n_nonzero = int(x_counts.sum())
    n_low = n_low_of(n_nonzero)
    weights, low_weights = np.empty(x.size), np.empty(x.size)
    weigh(x_counts, n_low, weights, low_weights)
    rows = parameter_rows(requests)
    sums = np.empty((len(rows), 8))
    _sums_of_all(x, weights, low_weights, rows, sums)
    found = []
    for x2, q2, xq, err2, low_x2, low_err2, underflow, overflow in sums.tolist():
        lost = int(underflow), int(overflow)
        found.append(ErrorSums(n_zero + n_nonzero, n_nonzero, *lost, x2, q2, xq, err2, n_low, low_x2, low_err2))
    return found


def of_values(pieces: Iterable[Float32], requests: Sequence[tuple[np.float32, Format]]) -> list[ErrorSums]:
    """Error sums of FP32 elements, vectors in any order, for each (scale, format); the low_ sums are left at 0."""
    rows = parameter_rows(requests)
    totals = np.zeros((len(requests), 8))
    for x in pieces:
        for start in range(0, x.size, PIECE):
            for row, total in zip(rows, totals, strict=True):
                total += _block_sums(x[start : start + PIECE], row)
    found = []
    for x2, q2, xq, err2, *whole in totals.tolist():
        underflow, overflow, n, n_nonzero = map(int, whole)
        found.append(ErrorSums(n, n_nonzero, underflow, overflow, x2, q2, xq, err2))
    return found
