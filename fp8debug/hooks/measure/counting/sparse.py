"""Compiled: the table of all codes as a list of those that occur."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fp8debug.hooks.measure.counting.jit import kernel

Codes32 = npt.NDArray[np.uint32]
Table32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]

SIGN = 0x8000
_LINE = 16
"""Counters of a cache line; where infinity stands is a multiple of it in BF16 and FP16."""


@kernel("int64(uint32[::1], int64, uint32[::1], int64[::1], int64)")
def _pack(dense: Table32, first: int, codes: Codes32, counts: Int64, size: int) -> int:
    """Append the codes that occur, `first` being that of the first counter, and empty the counters."""
    words = dense.view(np.uint64)
    for line in range(dense.size // _LINE):
        used = np.uint64(0)
        for word in range(line * _LINE // 2, (line + 1) * _LINE // 2):
            used |= words[word]
        if used == np.uint64(0):
            continue
        for i in range(line * _LINE, (line + 1) * _LINE):
            count = dense[i]
            # Written either way and kept if it occurs: a branch here would be a coin's toss.
            codes[size], counts[size] = first + i, count
            size += int(count != np.uint32(0))
            dense[i] = 0
    return size


@kernel("int64(uint32[::1])")
def _total(dense: Table32) -> int:
    total = 0
    for i in range(dense.size):
        total += int(dense[i])
        dense[i] = 0
    return total


@kernel("int64(uint32[::1], int64, uint32[::1], int64[::1], int64[::1])")
def extract(dense: Table32, infinity: int, codes: Codes32, counts: Int64, found: Int64) -> int:
    """Empty `dense` into a sparse list of the finite codes, in order, and return its length.

    Args:
        dense: zeros on return, (65536,).
        infinity: code of positive infinity; larger magnitudes are NaN.
        codes, counts: the list, in the first places, (65536,).
        found: zeros, negative zeros, NaN, +Inf, -Inf, smallest non-zero finite magnitude (0: none), largest, (7,).
    """
    zeros, negative_zeros = int(dense[0]) + int(dense[SIGN]), int(dense[SIGN])
    above, below = int(dense[infinity]), int(dense[SIGN + infinity])
    nans = _total(dense[infinity:SIGN]) + _total(dense[SIGN + infinity :]) - above - below
    middle = _pack(dense[:infinity], 0, codes, counts, 0)
    size = _pack(dense[SIGN : SIGN + infinity], SIGN, codes, counts, middle)
    smallest, largest = infinity, 0
    for begin, end, sign in ((0, middle, 0), (middle, size, SIGN)):
        if begin < end:
            largest = max(largest, int(codes[end - 1]) - sign)
            begin += int(int(codes[begin]) == sign)
        if begin < end:
            smallest = min(smallest, int(codes[begin]) - sign)
    found[:] = np.array((zeros, negative_zeros, nans, above, below, smallest if largest else 0, largest))
    return size
