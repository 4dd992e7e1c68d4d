"""Fletcher-64 over 64-bit words: tells whether two tensors hold the same bytes in the same order.

s1 += w, s2 += s1 for every little-endian word w (the last one padded with zero bytes), modulo 2^64;
checksum = s2 xor rotate_left(s1, 32).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1


def finish(s1: int, s2: int) -> int:
    """Fold the two running sums into one number."""
    return s2 ^ ((s1 << 32 | s1 >> 32) & MASK)


def fletcher(data: npt.NDArray[np.uint8], s1: int = 0, s2: int = 0, block: int = 1 << 16) -> tuple[int, int]:
    """Advance the sums over `data`; only the last call of a sequence may have a length not divisible by 8."""
    if data.size % 8:
        data = np.concatenate([data, np.zeros(-data.size % 8, np.uint8)])
    words = data.view("<u8")
    weights = np.arange(block, 0, -1, dtype=np.uint64)
    for start in range(0, words.size, block):
        part = words[start : start + block]
        s2 = (s2 + part.size * s1 + int(np.dot(part, weights[block - part.size :]))) & MASK
        s1 = (s1 + int(part.sum(dtype=np.uint64))) & MASK
    return s1, s2
