"""The health of a CPU tensor from compiled scans of its bit patterns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.measure import codes, layout
from fp8debug.hooks.measure.counting import scan
from fp8debug.hooks.measure.health import Health

CHUNK = 1 << 20
"""Elements of a temporary, where one is needed."""


class _Scan:
    """What the scans of all pieces of a tensor, cast to one dtype, have found."""

    def __init__(self, t: torch.Tensor, dtype: torch.dtype) -> None:
        self.infinity = codes.INFINITY[dtype]
        scan_piece = scan.scan16 if dtype.itemsize == 2 else scan.scan32
        self.largest, self.smallest = 0, 1 << 33
        self.zeros = self.negative_zeros = self.nans = self.above = self.below = 0
        for bits in _pieces(t, dtype):
            largest, below_smallest, zeros, negative_zeros = scan_piece(bits)
            self.largest = max(self.largest, largest)
            self.smallest = min(self.smallest, below_smallest + 1)
            self.zeros += zeros
            self.negative_zeros += negative_zeros
        if self.largest >= self.infinity:
            self._look_at_nonfinite(t, dtype)

    def _look_at_nonfinite(self, t: torch.Tensor, dtype: torch.dtype) -> None:
        """Count them, and find the largest pattern below."""
        narrow = dtype.itemsize == 2
        self.largest = 0
        for bits in _pieces(t, dtype):
            if narrow:
                largest, nans, above, below = scan.nonfinite16(bits, np.uint16(self.infinity))
            else:
                largest, nans, above, below = scan.nonfinite32(bits, np.uint32(self.infinity))
            self.largest = max(self.largest, largest)
            self.nans += nans
            self.above += above
            self.below += below


def health(t: torch.Tensor, way: codes.Route) -> Health:
    """Take the health of a detached CPU tensor of 2, 4 or 8 bytes an element, not empty."""
    found = _Scan(t, way.source)
    value_of: Callable[[int, torch.dtype], float] = codes.value_of
    dtype = way.source
    if not way.health_of_source and way.counted is not way.source:
        to_zero, to_infinity = codes.ROUNDING_LIMITS[way.counted]
        dtype = way.counted
        if found.smallest <= to_zero or found.largest >= to_infinity:
            found = _Scan(t, way.counted)
        else:  # rounding makes no zero and no infinity: the extremes when rounded are the rounded extremes
            value_of = codes.round_pattern
    amin = value_of(found.smallest, dtype) if found.smallest < found.infinity else None
    counts = found.zeros, found.negative_zeros, found.nans, found.above, found.below
    return Health(t.numel(), *counts, amin, value_of(found.largest, dtype))


def _pieces(t: torch.Tensor, dtype: torch.dtype) -> Iterator[npt.NDArray[Any]]:
    """Yield the patterns of the elements cast to `dtype`, in any order."""
    if t.dtype is dtype and t.is_contiguous():
        yield layout.patterns(t)
        return
    for block in layout.flat_blocks(layout.storage_order(t), aligned=False):
        if block.dtype is dtype:
            yield layout.patterns(block)
        else:
            for chunk in block.split(CHUNK):
                yield layout.patterns(chunk.to(torch.float32).to(dtype))
