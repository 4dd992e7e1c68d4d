"""A tensor with very many scales as several tensors: a stack of experts in NVFP4 has gigabytes of scales alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod, sqrt

import numpy as np

from fp8debug.analysis.checkpoint.facts import CodeFacts, LineRanges
from fp8debug.analysis.checkpoint.measuring.lines import KEPT_RANGES
from fp8debug.analysis.checkpoint.records import Quantised, Scale, Stored
from fp8debug.analysis.checkpoint.store import Store, n_bytes_of
from fp8debug.formats import ELEMENT_FORMATS, Uint8Array, decode

MANY_SCALES = 1 << 22
"""Numbers that are made floats at a time: 16 MB, and several times that while they are."""


class PartStore(Store):
    """Some bytes of tensors of another store, as tensors of their own.

    Args:
        store: the other one.
        tensors: the parts.
        starts: the byte of the whole tensor where each part begins.
    """

    def __init__(self, store: Store, tensors: Mapping[str, Stored], starts: Mapping[str, int]) -> None:
        self.path, self.configs, self.metadata = store.path, store.configs, store.metadata
        self.tensors = tensors
        self._store, self._starts = store, starts

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """As in `Store`."""
        return self._store.read(name, self._starts[name] + first, self._starts[name] + last)

    def close(self) -> None:
        """Nothing: the other one stays open."""


def parts_of(store: Store, quantised: Quantised) -> Iterator[tuple[Store, Quantised, int]]:
    """Parts of a tensor that have few scales each: where they lie, how they are read, and the first line.

    Stacks are cut between matrices, single matrices between rows of blocks. There are none where that is not needed, or
    where scales are not in the order of the lines.
    """
    n_scales = sum(store.tensors[scale.name].n for scale in quantised.scales)
    matrices = prod(quantised.shape[:-2])
    if n_scales <= MANY_SCALES or len(quantised.shape) < 2 or quantised.grid_scale not in _cut(quantised):
        return
    unit = quantised.shape[-2] if matrices > 1 else _lines_of_blocks(quantised)
    n_units = quantised.lines // unit if unit else 0
    if n_units < 2 or quantised.lines % unit or any(prod(one.shape) % n_units for one in _cut(quantised)):
        return
    n_parts = min(n_units, -(-n_scales // MANY_SCALES))
    for part in range(n_parts):
        first = part * n_units // n_parts
        n = (part + 1) * n_units // n_parts - first
        shape = (n, *quantised.shape[-2:]) if matrices > 1 else (n * unit, quantised.length)
        yield *_part(store, quantised, shape, first, n, n_units), first * unit


def _part(
    store: Store, quantised: Quantised, shape: tuple[int, ...], first: int, n: int, n_units: int
) -> tuple[Store, Quantised]:
    codes = store.tensors[quantised.name]
    size = n_bytes_of(codes) // n_units
    tensors = {codes.name: replace(codes, shape=(*shape[:-1], codes.n // quantised.lines))}
    starts = {codes.name: first * size}
    scales = []
    for scale in quantised.scales:
        stored, starts[scale.name] = store.tensors[scale.name], 0
        if scale in _cut(quantised):
            starts[scale.name] = first * (n_bytes_of(stored) // n_units)
            stored = replace(stored, shape=(n * (stored.n // n_units),))
        tensors[scale.name] = stored
        scales.append(replace(scale, shape=stored.shape))
    return PartStore(store, tensors, starts), replace(quantised, shape=shape, scales=tuple(scales))


def _cut(quantised: Quantised) -> list[Scale]:
    """Scales that have numbers of their own for each part."""
    return [scale for scale in quantised.scales if prod(scale.shape) > 1 and scale.layout != "column"]


def _lines_of_blocks(quantised: Quantised) -> int:
    """Lines of a single matrix that can be cut off; 0: none can."""
    kinds = {(scale.layout, scale.block) for scale in _cut(quantised)}
    if len(kinds) != 1 or any(scale.is_swizzled or scale.is_transposed for scale in quantised.scales):
        return 0
    layout, block = kinds.pop()
    return 1 if layout == "line" else block[0] if layout == "block" and block is not None else 0


def joined(parts: Sequence[tuple[CodeFacts, int]], fmt: str) -> CodeFacts:
    """Facts of a tensor of a format from those of its parts, each with its first line."""
    facts = [one for one, _ in parts]
    known = ELEMENT_FORMATS[fmt]
    is_finite = np.isfinite(decode(np.arange(1 << known.bits, dtype=np.uint8), known))
    n_finite = [int(one.histogram[is_finite].sum()) for one in facts]
    histograms = [one.block_histogram for one in facts if one.block_histogram is not None]
    return CodeFacts(
        n=sum(one.n for one in facts),
        n_nan=sum(one.n_nan for one in facts),
        nan_lines=_joined_lines([(one.nan_lines, first) for one, first in parts]),
        n_zero=sum(one.n_zero for one in facts),
        n_largest=sum(one.n_largest for one in facts),
        largest=max(one.largest for one in facts),
        histogram=sum((one.histogram for one in facts[1:]), facts[0].histogram),
        n_sampled=sum(one.n_sampled for one in facts),
        n_blocks=sum(one.n_blocks for one in facts),
        block_histogram=sum(histograms[1:], histograms[0]) if len(histograms) == len(facts) else None,
        n_lost=sum(one.n_lost for one in facts),
        rms=_rms([one.rms for one in facts], n_finite),
        rms_codes=_rms([one.rms_codes for one in facts], n_finite),
    )


def _rms(parts: Sequence[float], counts: Sequence[int]) -> float:
    n = sum(counts)
    return sqrt(sum(rms * rms * count for rms, count in zip(parts, counts, strict=True)) / n) if n else 0.0


def _joined_lines(parts: Sequence[tuple[LineRanges, int]]) -> LineRanges:
    ranges: list[tuple[int, int]] = []
    for one, first in parts:
        for start, end in one.ranges:
            if ranges and ranges[-1][1] == first + start - 1:
                ranges[-1] = (ranges[-1][0], first + end)
            else:
                ranges.append((first + start, first + end))
    return LineRanges(sum(one.n for one, _ in parts), tuple(ranges[:KEPT_RANGES]))
