"""The histogram of a CPU tensor from compiled counting."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.measure import codes, layout
from fp8debug.hooks.measure.counting import extremes
from fp8debug.hooks.measure.counting.scratch import Scratch
from fp8debug.hooks.measure.engine import Counted
from fp8debug.hooks.measure.health import Health

PASS = 1 << 30
"""Elements after which the 32-bit tables are emptied."""
CHUNK = 1 << 20
"""Elements of a temporary, where one is needed."""

Dense = npt.NDArray[np.int64]


def count(t: torch.Tensor, way: codes.Route, scratch: Scratch) -> Counted:
    """Count the values of a detached CPU tensor."""
    scratch.sums[:] = 0
    if way.counted.itemsize == 1:
        return _from_dense(_dense8(t, scratch), None, way, scratch)
    earlier = _count_parts(t, way, scratch)
    health = extremes.health(t, way) if way.health_of_source and t.numel() else None
    if earlier is not None:
        return _from_dense(earlier + scratch.take(), health, way, scratch)
    sparse = scratch.take_sparse(way.counted)
    if health is None:
        health = _health_of(t.numel(), sparse.found, way.counted)
    elif sparse.found[3:5] != (health.n_posinf, health.n_neginf):  # finite values were rounded to infinity
        dense = np.zeros(1 << 16, np.int64)
        dense[sparse.values.view(np.uint32) >> 16] = sparse.counts  # of BF16: FP16 is never counted instead of FP32
        dense[[0x7F80, 0xFF80]] = sparse.found[3:5]
        return _from_dense(dense, health, way, scratch)
    return Counted(health, sparse.values, sparse.counts, scratch.checksum(), way.approx)


def _count_parts(t: torch.Tensor, way: codes.Route, scratch: Scratch) -> Dense | None:
    """Count piece by piece; return what had to be taken out of the tables on the way."""
    earlier: Dense | None = None
    counted = 0
    for block in layout.flat_blocks(t):
        for part in block.split(PASS) if block.numel() > PASS else (block,):
            counted += part.numel()
            if counted > PASS:
                earlier = scratch.take() if earlier is None else earlier + scratch.take()
                counted = part.numel()
            _count_part(part, way, scratch)
    return earlier


def _count_part(part: torch.Tensor, way: codes.Route, scratch: Scratch) -> None:
    """Count a contiguous vector of 2, 4 or 8 bytes an element."""
    if part.dtype is way.counted:
        scratch.count_codes(layout.patterns(part), scratch.sums)
    elif part.dtype is torch.float32 and way.counted is torch.bfloat16:
        scratch.count_rounded(layout.patterns(part), scratch.sums)
    else:
        scratch.add_checksum(layout.raw_bytes(part))
        for chunk in part.split(CHUNK):
            if way.counted is torch.bfloat16:
                scratch.count_rounded(layout.patterns(chunk.to(torch.float32)))
            else:
                scratch.count_codes(layout.patterns(chunk.to(way.counted)))


def _dense8(t: torch.Tensor, scratch: Scratch) -> Dense:
    """Count 8-bit codes, two at a time, (256,)."""
    odd: Dense = np.zeros(256, np.int64)
    pairs: Dense = np.zeros(1 << 16, np.int64)
    for block in layout.flat_blocks(t):
        data = layout.raw_bytes(block)
        scratch.add_checksum(data)
        if data.size % 2:
            odd[data[-1]] += 1
        pair_codes = data[: data.size // 2 * 2].view(np.uint16)
        for start in range(0, pair_codes.size, PASS):
            scratch.count_codes(pair_codes[start : start + PASS])
            pairs += scratch.take()
    square = pairs.reshape(256, 256)
    dense: Dense = odd + square.sum(axis=0) + square.sum(axis=1)
    return dense


def _health_of(n: int, found: tuple[int, ...], dtype: torch.dtype) -> Health:
    zeros, negative, nans, above, below, smallest, largest = found
    amin = codes.value_of(smallest, dtype) if smallest else None
    return Health(n, zeros, negative, nans, above, below, amin, codes.value_of(largest, dtype))


def _from_dense(dense: Dense, health: Health | None, way: codes.Route, scratch: Scratch) -> Counted:
    """Make the result from the count of every code; `health` is None when it follows from that."""
    if health is None:
        health = codes.health_of_codes(dense, way.counted)
    else:
        codes.keep_rounded_overflow(dense, health)
    return Counted(health, *codes.sparse(dense, way.counted), scratch.checksum(), way.approx)
