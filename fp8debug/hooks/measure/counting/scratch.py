"""The tables one thread counts into, made once and left empty between tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.measure import checksum
from fp8debug.hooks.measure.codes import INFINITY, values_of
from fp8debug.hooks.measure.counting import count, sparse

Scalar = TypeVar("Scalar", bound=np.generic)

CACHE_LINE = 64


@dataclass(frozen=True, slots=True)
class Sparse:
    """Occurring finite values in code order and their counts, and what else was found."""

    values: npt.NDArray[np.float32]
    counts: npt.NDArray[np.int64]
    found: tuple[int, ...]
    """Zeros, negative zeros, NaN, +Inf, -Inf, smallest non-zero finite magnitude (0: none), largest."""


class Scratch:
    """Tables of one thread, 2.1 MB."""

    def __init__(self) -> None:
        self._byte = _aligned(count.CODES, np.uint8)
        self._narrow = _aligned(count.CODES, np.uint16)
        self._wide = _aligned(4 * count.CODES, np.uint32)
        self._dense = _aligned(count.CODES, np.uint32)
        self._stage = _aligned(count.STAGE, np.uint16)
        self._codes = np.empty(count.CODES, np.uint32)
        self._counts = np.empty(count.CODES, np.int64)
        self._found = np.empty(7, np.int64)
        self._unused = np.zeros(2, np.uint64)
        self._used_wide = False
        self.sums = np.zeros(2, np.uint64)
        """Running sums of the checksum; the caller resets them."""

    def count_codes(self, codes: npt.NDArray[np.uint16], sums: npt.NDArray[np.uint64] | None = None) -> None:
        """Count 16-bit codes; see `count.count_codes`. Without `sums` the checksum is left alone."""
        sums = self._unused if sums is None else sums
        self._used_wide |= count.count_codes(codes, self._byte, self._narrow, self._wide, self._dense, sums)

    def count_rounded(self, codes: npt.NDArray[np.uint32], sums: npt.NDArray[np.uint64] | None = None) -> None:
        """Count FP32 patterns as BF16 ones; see `count.count_rounded`. Without `sums` as in `count_codes`."""
        sums = self._unused if sums is None else sums
        self._used_wide |= count.count_rounded(
            codes, self._stage, self._byte, self._narrow, self._wide, self._dense, sums
        )

    def add_checksum(self, data: npt.NDArray[np.uint8]) -> None:
        """Advance the checksum over bytes at an address divisible by 8; only the last may be no whole words."""
        whole = data.size // 8 * 8
        count.fletcher(data[:whole].view(np.uint64), self.sums)
        if whole < data.size:
            s1, s2 = checksum.fletcher(data[whole:], int(self.sums[0]), int(self.sums[1]))
            self.sums[:] = s1, s2

    def checksum(self) -> int:
        """Return the checksum of what has passed since `sums` was reset."""
        return checksum.finish(int(self.sums[0]), int(self.sums[1]))

    def take(self) -> npt.NDArray[np.int64]:
        """Empty the tables into a dense count of every code, (65536,)."""
        self._drain_wide()
        dense = self._dense.astype(np.int64)
        self._dense[:] = 0
        return dense

    def take_sparse(self, dtype: torch.dtype) -> Sparse:
        """Empty the tables into the list of values that occur; the codes are those of `dtype`, BF16 or FP16."""
        self._drain_wide()
        size = sparse.extract(self._dense, INFINITY[dtype], self._codes, self._counts, self._found)
        return Sparse(values_of(self._codes[:size], dtype), self._counts[:size].copy(), tuple(self._found.tolist()))

    def _drain_wide(self) -> None:
        if self._used_wide:  # 1 MB to look through
            count.drain_wide(self._wide, self._dense)
            self._used_wide = False


def _aligned(size: int, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
    """Zeros that start at a cache line, so that a line of table codes is a line of memory."""
    items = size + CACHE_LINE // np.dtype(dtype).itemsize
    array = np.zeros(items, dtype)
    skip = -array.ctypes.data % CACHE_LINE // array.itemsize
    return array[skip : skip + size]
