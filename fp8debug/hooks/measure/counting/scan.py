"""Compiled passes for the health: extremes and counts from the bit patterns of the elements.

All work on unsigned lanes of the element's width, cast back after every operation: numba widens to 64 bits, LLVM
narrows again and vectorises, but only loops over a whole array argument, hence the small functions a block at a time.
Without the sign bit a larger pattern is a larger magnitude, infinity lies above all finite ones and NaN above it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fp8debug.hooks.measure.counting.jit import kernel, prefetch

Codes16 = npt.NDArray[np.uint16]
Codes32 = npt.NDArray[np.uint32]

BLOCK = 1024
"""Elements of a block: in the first-level cache for a second look, too few for a 16-bit count to overflow, and as much
as is asked for ahead."""
LINE = 64
"""Bytes of a cache line."""

U16, U32 = np.uint16, np.uint32
_ZERO16, _ONE16, _MAGNITUDE16, _SIGN16, _TOP16 = U16(0), U16(1), U16(0x7FFF), U16(0x8000), U16(0xFFFF)
_ZERO32, _ONE32, _MAGNITUDE32, _SIGN32, _TOP32 = U32(0), U32(1), U32(0x7FFFFFFF), U32(0x80000000), U32(0xFFFFFFFF)


@kernel("UniTuple(uint16, 3)(uint16[::1])")
def _block16(block: Codes16) -> tuple[np.uint16, np.uint16, np.uint16]:
    largest, smallest, zeros = _ZERO16, _TOP16, _ZERO16
    for i in range(block.size):
        magnitude = U16(block[i] & _MAGNITUDE16)
        largest = U16(max(largest, magnitude))
        smallest = U16(min(smallest, U16(magnitude - _ONE16)))  # zero wraps to the top and never wins
        zeros = U16(zeros + U16(magnitude == _ZERO16))
    return largest, smallest, zeros


@kernel("uint16(uint16[::1], uint16)")
def _equal16(block: Codes16, code: np.uint16) -> np.uint16:
    count = _ZERO16
    for i in range(block.size):
        count = U16(count + U16(block[i] == code))
    return count


@kernel("UniTuple(int64, 4)(uint16[::1])")
def scan16(codes: Codes16) -> tuple[int, int, int, int]:
    """Return the largest pattern, the smallest non-zero one less 1 (65535: none), zeros and negative zeros."""
    largest, smallest, zeros, negative = 0, 0xFFFF, 0, 0
    for start in range(0, codes.size, BLOCK):
        for ahead in range(start + BLOCK, start + 2 * BLOCK, LINE // 2):
            prefetch(codes, ahead)
        block = codes[start : start + BLOCK]
        high, low, count = _block16(block)
        largest, smallest = max(largest, int(high)), min(smallest, int(low))
        if count:
            zeros += int(count)
            negative += int(_equal16(block, _SIGN16))
    return largest, smallest, zeros, negative


@kernel("UniTuple(uint16, 3)(uint16[::1], uint16)")
def _nonfinite16(block: Codes16, infinity: np.uint16) -> tuple[np.uint16, np.uint16, np.uint16]:
    largest, nans, infinities = _ZERO16, _ZERO16, _ZERO16
    for i in range(block.size):
        magnitude = U16(block[i] & _MAGNITUDE16)
        largest = U16(max(largest, U16(magnitude * U16(magnitude < infinity))))
        nans = U16(nans + U16(magnitude > infinity))
        infinities = U16(infinities + U16(magnitude == infinity))
    return largest, nans, infinities


@kernel("UniTuple(int64, 4)(uint16[::1], uint16)")
def nonfinite16(codes: Codes16, infinity: np.uint16) -> tuple[int, int, int, int]:
    """Return the largest finite pattern, NaNs, positive and negative infinities."""
    largest, nans, positive, negative = 0, 0, 0, 0
    for start in range(0, codes.size, BLOCK):
        block = codes[start : start + BLOCK]
        high, nan, both = _nonfinite16(block, infinity)
        largest, nans = max(largest, int(high)), nans + int(nan)
        if both:
            below = int(_equal16(block, U16(infinity | _SIGN16)))
            negative += below
            positive += int(both) - below
    return largest, nans, positive, negative


@kernel("UniTuple(uint32, 3)(uint32[::1])")
def _block32(block: Codes32) -> tuple[np.uint32, np.uint32, np.uint32]:
    largest, smallest, zeros = _ZERO32, _TOP32, _ZERO32
    for i in range(block.size):
        magnitude = U32(block[i] & _MAGNITUDE32)
        largest = U32(max(largest, magnitude))
        smallest = U32(min(smallest, U32(magnitude - _ONE32)))
        zeros = U32(zeros + U32(magnitude == _ZERO32))
    return largest, smallest, zeros


@kernel("uint32(uint32[::1], uint32)")
def _equal32(block: Codes32, code: np.uint32) -> np.uint32:
    count = _ZERO32
    for i in range(block.size):
        count = U32(count + U32(block[i] == code))
    return count


@kernel("UniTuple(int64, 4)(uint32[::1])")
def scan32(codes: Codes32) -> tuple[int, int, int, int]:
    """As `scan16`; 2^32 - 1 says that there is no non-zero element."""
    largest, smallest, zeros, negative = 0, 0xFFFFFFFF, 0, 0
    for start in range(0, codes.size, BLOCK):
        for ahead in range(start + BLOCK, start + 2 * BLOCK, LINE // 4):
            prefetch(codes, ahead)
        block = codes[start : start + BLOCK]
        high, low, count = _block32(block)
        largest, smallest = max(largest, int(high)), min(smallest, int(low))
        if count:
            zeros += int(count)
            negative += int(_equal32(block, _SIGN32))
    return largest, smallest, zeros, negative


@kernel("UniTuple(uint32, 3)(uint32[::1], uint32)")
def _nonfinite32(block: Codes32, infinity: np.uint32) -> tuple[np.uint32, np.uint32, np.uint32]:
    largest, nans, infinities = _ZERO32, _ZERO32, _ZERO32
    for i in range(block.size):
        magnitude = U32(block[i] & _MAGNITUDE32)
        largest = U32(max(largest, U32(magnitude * U32(magnitude < infinity))))
        nans = U32(nans + U32(magnitude > infinity))
        infinities = U32(infinities + U32(magnitude == infinity))
    return largest, nans, infinities


@kernel("UniTuple(int64, 4)(uint32[::1], uint32)")
def nonfinite32(codes: Codes32, infinity: np.uint32) -> tuple[int, int, int, int]:
    """As `nonfinite16`."""
    largest, nans, positive, negative = 0, 0, 0, 0
    for start in range(0, codes.size, BLOCK):
        block = codes[start : start + BLOCK]
        high, nan, both = _nonfinite32(block, infinity)
        largest, nans = max(largest, int(high)), nans + int(nan)
        if both:
            below = int(_equal32(block, U32(infinity | _SIGN32)))
            negative += below
            positive += int(both) - below
    return largest, nans, positive, negative
