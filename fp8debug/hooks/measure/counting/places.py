"""Compiled sums that depend on where a value stands: one sum a block, or one a line and one a column.

The rounding is that of `sums`, written down again because kernels call only kernels of their own file (see `count`).
It must not be compiled with fastmath; its callers may.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fp8debug.hooks.measure.counting.jit import kernel

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Bits = npt.NDArray[np.uint32]

UNIT = 16
"""Elements summed at once, known to the compiler: what every block length is a multiple of."""

# Columns of a row of `sums.parameter_rows`.
SCALE, INVERSE, LARGEST, MIN_NORMAL, FACTOR, THRESHOLD = range(6)
REORDER = ("reassoc", "nsz")
FUSE = (*REORDER, "contract")
"""Lets sums take a product in without rounding it first. `_round` is compiled without: both its steps must round."""

U32 = np.uint32
_MAGNITUDE, _EXPONENT, _INFINITY = U32(0x7FFFFFFF), U32(0x7F800000), 0x7F800000
_INF = np.float32(np.inf)


@kernel("float32(float32)")
def _power_of_two(magnitude: np.float32) -> np.float32:
    """Largest power of two that is not above `magnitude`; 0 for a subnormal."""
    exponent = np.float32(magnitude).view(np.uint32) & _EXPONENT
    return np.uint32(exponent).view(np.float32)


@kernel("float32(float32, float32[::1])")
def _round(scaled: np.float32, row: Float32) -> np.float32:
    """Round a scaled magnitude to the format, saturating; NaN, where 0 meets an infinite factor, saturates too."""
    magnitude = scaled if scaled < row[LARGEST] else row[LARGEST]
    power = max(_power_of_two(magnitude), row[MIN_NORMAL]) * row[FACTOR]
    rounded: np.float32 = (magnitude + power) - power
    return rounded


@kernel("void(uint32[::1], uint32[::1])")
def _larger_magnitudes(bits: Bits, out: Bits) -> None:
    for i in range(out.size):
        a, b = U32(bits[2 * i] & _MAGNITUDE), U32(bits[2 * i + 1] & _MAGNITUDE)
        out[i] = a if a > b else b


@kernel("void(uint32[::1], uint32[::1])")
def _larger(magnitudes: Bits, out: Bits) -> None:
    for i in range(out.size):
        a, b = magnitudes[2 * i], magnitudes[2 * i + 1]
        out[i] = a if a > b else b


@kernel("void(uint32[:, ::1], int64, int64, uint32[:, ::1])")
def block_largest(bits: Bits, tile_lines: int, units: int, largest: Bits) -> None:
    """Raise `largest` to the largest magnitude pattern of each block: above 0x7F800000 there is a NaN in it.

    Neighbours are compared, then neighbouring winners: that vectorises whatever the length of a block.

    Args:
        bits: FP32 patterns, (lines, columns), a multiple of 16 columns.
        tile_lines: lines of a block.
        units: length of a block in units of 16 elements.
        largest: (blocks down, blocks across), across * units * 16 = columns.
    """
    columns = bits.shape[1]
    halves, quarters = np.empty(columns // 2, np.uint32), np.empty(columns // 4, np.uint32)
    eighths, winners = halves[: columns // 8], quarters[: columns // 16]
    for i in range(bits.shape[0]):
        _larger_magnitudes(bits[i], halves)
        _larger(halves, quarters)
        _larger(quarters, eighths)
        _larger(eighths, winners)
        row = largest[i // tile_lines]
        for j in range(row.size):
            winner = row[j]
            for unit in range(j * units, (j + 1) * units):
                winner = max(winner, winners[unit])
            row[j] = winner


@kernel("UniTuple(float64, 7)(float32[::1], float32[::1], float32, float32, float32[::1])", fastmath=FUSE)
def _unit_sums(x: Float32, read: Float32, encode: np.float32, decode: np.float32, row: Float32) -> tuple[float, ...]:
    """x^2, (x - q)^2, overflows, q^2, xq, non-zero elements, and those of them that stay so."""
    x2 = q2 = xq = err2 = 0.0
    overflow, nonzero, kept = U32(0), U32(0), U32(0)
    for i in range(UNIT):
        magnitude, scaled = abs(x[i]), abs(read[i]) * encode
        rounded = _round(scaled, row) * decode
        value, q = np.float64(magnitude), np.float64(rounded)
        error = value - q
        x2 += value * value
        err2 += error * error
        q2 += q * q
        xq += value * q
        overflow = U32(overflow + U32(scaled > row[THRESHOLD]))
        nonzero = U32(nonzero + U32(magnitude != 0))
        kept = U32(kept + U32((rounded != 0) & (magnitude != 0)))
    return x2, err2, float(overflow), q2, xq, float(nonzero), float(kept)


@kernel(
    "void(float32[:, ::1], float32[:, ::1], int64, int64, uint32[:, ::1], float32[:, ::1], float32[:, ::1],"
    " float32[::1], float64[::1])"
)
def sum_blocks(
    x: Float32,
    read: Float32,
    tile_lines: int,
    units: int,
    largest: Bits,
    encode: Float32,
    decode: Float32,
    row: Float32,
    found: Float64,
) -> None:
    """Sum over all blocks, but for those of zeros and those with NaN or Inf, and find the one that fares worst.

    Args:
        x: values whose loss is measured, (lines, columns) as in `block_largest`.
        read: what is quantised, of the same shape and signs; `x` itself, except after a transform.
        tile_lines, units: size of a block, as in `block_largest`.
        largest: its result for `read`.
        encode, decode: factors before and after the cast, one a block.
        row: of `sums.parameter_rows`; its scale is not used.
        found: x^2, (x - q)^2, overflows, q^2, xq, non-zero elements and those of them that stay so; blocks with
            overflows; lowest x^2 / (x - q)^2 of a block, and its row-major index (-1: no block has an error), (10,).
    """
    found[:] = 0
    found[8], found[9] = np.inf, -1
    for block_row in range(encode.shape[0]):
        for j in range(encode.shape[1]):
            if largest[block_row, j] == 0 or largest[block_row, j] >= _INFINITY:
                continue
            before, after = encode[block_row, j], decode[block_row, j]
            x2 = err2 = overflow = q2 = xq = nonzero = kept = 0.0
            for i in range(block_row * tile_lines, min((block_row + 1) * tile_lines, x.shape[0])):
                for unit in range(units):
                    start = (j * units + unit) * UNIT
                    part = _unit_sums(x[i, start : start + UNIT], read[i, start : start + UNIT], before, after, row)
                    x2 += part[0]
                    err2 += part[1]
                    overflow += part[2]
                    q2 += part[3]
                    xq += part[4]
                    nonzero += part[5]
                    kept += part[6]
            found[0] += x2
            found[1] += err2
            found[2] += overflow
            found[3] += q2
            found[4] += xq
            found[5] += nonzero
            found[6] += kept
            found[7] += 1.0 if overflow > 0 else 0.0
            if err2 > 0 and x2 / err2 < found[8]:
                found[8], found[9] = x2 / err2, block_row * encode.shape[1] + j


@kernel("float32(uint32)")
def _of_bits(bits: np.uint32) -> np.float32:
    return np.uint32(bits).view(np.float32)


@kernel("Tuple((uint32, uint32, float64))(uint32[::1], uint32[::1], uint32[::1], float64[::1])", fastmath=REORDER)
def _line_sizes(bits: Bits, largest: Bits, nonzero: Bits, x2: Float64) -> tuple[np.uint32, np.uint32, float]:
    line_largest, line_nonzero, line_x2 = U32(0), U32(0), 0.0
    for i in range(bits.size):
        pattern = U32(bits[i] & _MAGNITUDE)
        pattern = pattern if pattern < _EXPONENT else U32(0)
        value = np.float64(_of_bits(pattern))
        square = value * value
        largest[i] = U32(max(largest[i], pattern))
        nonzero[i] = U32(nonzero[i] + U32(pattern != 0))
        x2[i] += square
        line_largest = U32(max(line_largest, pattern))
        line_nonzero = U32(line_nonzero + U32(pattern != 0))
        line_x2 += square
    return line_largest, line_nonzero, line_x2


@kernel("void(uint32[:, ::1], uint32[::1], uint32[::1], float64[::1], uint32[::1], uint32[::1], float64[::1])")
def sum_sizes(
    bits: Bits,
    line_largest: Bits,
    line_nonzero: Bits,
    line_x2: Float64,
    largest: Bits,
    nonzero: Bits,
    x2: Float64,
) -> None:
    """Take the largest magnitude pattern, the non-zero elements and the sum of x^2 of lines and of columns.

    Args:
        bits: FP32 patterns, (lines, columns); NaN and Inf count as zeros.
        line_largest, line_nonzero, line_x2: written, (lines,).
        largest, nonzero, x2: of the columns; brought up to date, (columns,).
    """
    for i in range(bits.shape[0]):
        line_largest[i], line_nonzero[i], line_x2[i] = _line_sizes(bits[i], largest, nonzero, x2)


@kernel("UniTuple(float64, 2)(float32[::1], float32[::1], uint32[::1], float64[::1])", fastmath=REORDER)
def _line_error(x: Float32, row: Float32, kept: Bits, err2: Float64) -> tuple[float, float]:
    line_kept, line_err2 = U32(0), 0.0
    for i in range(x.size):
        magnitude = abs(x[i]) if abs(x[i]) < _INF else np.float32(0)
        rounded = _round(magnitude * row[SCALE], row) * row[INVERSE]
        rounded = rounded if magnitude != 0 else np.float32(0)
        error = np.float64(magnitude) - np.float64(rounded)
        square = error * error
        kept[i] = U32(kept[i] + U32(rounded != 0))
        err2[i] += square
        line_kept = U32(line_kept + U32(rounded != 0))
        line_err2 += square
    return float(line_kept), line_err2


@kernel("void(float32[:, ::1], float32[::1], uint32[::1], float64[::1], uint32[::1], float64[::1])")
def sum_errors(x: Float32, row: Float32, line_kept: Bits, line_err2: Float64, kept: Bits, err2: Float64) -> None:
    """Take what is left non-zero and the sum of (x - q)^2 of each line, and add those of columns, as in `sum_sizes`.

    Args:
        row: of `sums.parameter_rows`.
    """
    for i in range(x.shape[0]):
        count, square = _line_error(x[i], row, kept, err2)
        line_kept[i], line_err2[i] = U32(count), square
