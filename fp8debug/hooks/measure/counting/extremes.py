"""The health of a CPU tensor from compiled scans of its bit patterns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.measure import codes, layout
from fp8debug.hooks.measure.counting import scan
from fp8debug.hooks.measure.health import Health

CHUNK = 1 << 20
"""Elements of a temporary, where one is needed."""


def health(t: torch.Tensor, way: codes.Route) -> Health:
    """Take the health of a detached CPU tensor of 2, 4 or 8 bytes an element, not empty."""
    if way.source is not torch.float32 or way.health_of_source:
        return _health_as(t, way.source)
    largest, smallest, zeros, negative = _scan(t, torch.float32)
    to_zero, to_infinity = codes.ROUNDING_LIMITS[way.counted]
    if smallest <= to_zero or largest >= to_infinity:
        return _health_as(t, way.counted)
    # Nothing is rounded out of the finite non-zero numbers: the extremes are the rounded extremes.
    amin = None if smallest >= to_infinity else codes.round_pattern(smallest, way.counted)
    return Health(t.numel(), zeros, negative, 0, 0, 0, amin, codes.round_pattern(largest, way.counted))


def _health_as(t: torch.Tensor, dtype: torch.dtype) -> Health:
    """Health of the elements cast to `dtype`."""
    infinity = codes.INFINITY[dtype]
    largest, smallest, zeros, negative = _scan(t, dtype)
    nans = above = below = 0
    if largest >= infinity:
        largest, nans, above, below = _count_nonfinite(t, dtype)
    amin = codes.value_of(smallest, dtype) if smallest < infinity else None
    return Health(t.numel(), zeros, negative, nans, above, below, amin, codes.value_of(largest, dtype))


def _scan(t: torch.Tensor, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Largest and smallest non-zero pattern (beyond every pattern: none), zeros, negative zeros."""
    scan_block = scan.scan16 if dtype.itemsize == 2 else scan.scan32
    found = [scan_block(bits) for bits in _pieces(t, dtype)]
    largest, smallest, zeros, negative = zip(*found, strict=True)
    return max(largest), min(smallest) + 1, sum(zeros), sum(negative)


def _count_nonfinite(t: torch.Tensor, dtype: torch.dtype) -> tuple[int, int, int, int]:
    """Largest finite pattern, NaN, +Inf, -Inf."""
    if dtype.itemsize == 2:
        found = [scan.nonfinite16(bits, np.uint16(codes.INFINITY[dtype])) for bits in _pieces(t, dtype)]
    else:
        found = [scan.nonfinite32(bits, np.uint32(codes.INFINITY[dtype])) for bits in _pieces(t, dtype)]
    largest, nans, above, below = zip(*found, strict=True)
    return max(largest), sum(nans), sum(above), sum(below)


def _pieces(t: torch.Tensor, dtype: torch.dtype) -> Iterator[npt.NDArray[Any]]:
    """Yield the patterns of the elements cast to `dtype`, in any order."""
    for block in layout.flat_blocks(layout.storage_order(t), aligned=False):
        if block.dtype is dtype:
            yield layout.patterns(block)
        else:
            for chunk in block.split(CHUNK):
                yield layout.patterns(chunk.to(torch.float32).to(dtype))
