"""Measuring on a device with torch operations alone: where there is no Triton.

No `torch.bincount`, which waits for the device to learn the largest value, and no additions to counters, which take
turns where many elements are equal: codes are sorted and the places where each begins are looked up, which takes the
same time for all tensors. Everything is done in chunks, so that temporaries stay below 64 MiB.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fp8debug.hooks.measure.device.tally import (
    AMAX,
    FARTHEST,
    FIRST_GAP,
    LARGEST,
    N_NEGINF,
    N_ZERO,
    SUM_1,
    SUM_2,
    Tally,
    bad_codes,
)

CHUNK = 1 << 20
"""Elements of one temporary; a sort has the largest ones, with 8-byte indices beside its keys."""


class TorchKernels:
    """See `Kernels`."""

    name = "torch"

    def add_health(self, block: torch.Tensor, first: int, tally: Tally) -> None:
        """Extremes, zeros and what is not finite, by element; not for FP8."""
        infinity = bad_codes(tally.read_as).first
        for at, chunk in _chunks(block, first):
            code = _codes(chunk.to(tally.way.source).to(tally.read_as))
            sign = 1 << (8 * tally.read_as.itemsize - 1)
            size = code & (sign - 1)
            negative = code != size
            zero, infinite = size == 0, size == infinity
            flags = (zero, zero & negative, size > infinity, infinite & ~negative, infinite & negative)
            tally.head[N_ZERO : N_NEGINF + 1] += torch.stack([flag.count_nonzero() for flag in flags])
            finite = size < infinity
            amax = torch.where(finite, size, 0).amax()
            gap = torch.where(finite & ~zero, LARGEST - size, 0).amax()
            extremes = tally.head[AMAX : AMAX + 2]
            torch.maximum(extremes, torch.stack([amax, gap]).to(torch.int64), out=extremes)
            _mark(~finite, at, tally)

    def add_counts(self, block: torch.Tensor, first: int, tally: Tally) -> None:
        """Occurrences of each code, the sums of the checksum and, if the histogram says the health, non-finite rows."""
        n_codes = tally.counts.numel()
        bounds = torch.arange(n_codes + 1, dtype=torch.int32, device=block.device)
        bad = bad_codes(tally.way.counted)
        for at, chunk in _chunks(block, first):
            code = _codes(chunk.to(tally.way.source).to(tally.way.counted))
            tally.counts.add_(torch.searchsorted(code.sort()[0], bounds).diff())
            _add_checksum(chunk, at, tally)
            if tally.health_by_counts:
                _mark(((code & (n_codes // 2 - 1)) >= bad.first) | (code == bad.alone), at, tally)


def _chunks(block: torch.Tensor, first: int) -> Iterator[tuple[int, torch.Tensor]]:
    for start in range(0, block.numel(), CHUNK):
        yield first + start, block[start : start + CHUNK]


def _codes(values: torch.Tensor) -> torch.Tensor:
    """Bit patterns as int32; those of 4 bytes have their sign, shorter ones none."""
    if values.element_size() == 4:
        return values.view(torch.int32)
    if values.element_size() == 1:
        return values.view(torch.uint8).to(torch.int32)
    return values.view(torch.int16).to(torch.int32) & 0xFFFF


def _add_checksum(chunk: torch.Tensor, first: int, tally: Tally) -> None:
    """Add sums over 64-bit words w_i, i = 0 … N-1: of w_i and of (N - i) w_i, both modulo 2^64."""
    data = chunk.view(torch.uint8)
    words = torch.nn.functional.pad(data, (0, -data.numel() % 8)).view(torch.int64)
    before = first * chunk.element_size() // 8
    weights = torch.arange(tally.n_words - before, tally.n_words - before - words.numel(), -1, device=chunk.device)
    tally.head[SUM_1 : SUM_2 + 1] += torch.stack([words.sum(), (words * weights).sum()])


def _mark(bad: torch.Tensor, first: int, tally: Tally) -> None:
    """Note the rows of elements that are not finite."""
    index = torch.arange(first, first + bad.numel(), device=bad.device)
    place = tally.head[FIRST_GAP]
    torch.maximum(place, torch.where(bad, FARTHEST - index, 0).amax(), out=place)
    if tally.flags is not None:
        tally.flags.scatter_reduce_(0, index // tally.row_length, bad.to(torch.uint8), "amax")
