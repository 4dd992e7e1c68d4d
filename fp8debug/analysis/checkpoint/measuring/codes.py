"""One quantised tensor: its codes counted, its blocks and its magnitude."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.facts import CodeFacts, Int64Array
from fp8debug.analysis.checkpoint.grids import grid_of, scale_numbers
from fp8debug.analysis.checkpoint.measuring.blocks import BAND_BYTES, Blocks, Maxima, blocks_of, fits
from fp8debug.analysis.checkpoint.measuring.counting import Counts, counted
from fp8debug.analysis.checkpoint.measuring.magnitude import Magnitude
from fp8debug.analysis.checkpoint.measuring.parts import MANY_SCALES, joined, parts_of
from fp8debug.analysis.checkpoint.measuring.progress import Progress
from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.store import BITS, Store, n_bytes_of
from fp8debug.analysis.checkpoint.values import Dequantiser
from fp8debug.formats import ELEMENT_FORMATS, Float32Array, Uint8Array, decode

_MANY_BLOCKS = 1 << 16
_one_at_a_time = threading.Lock()


def can_count(store: Store, quantised: Quantised) -> bool:
    """Whether its codes are bytes, or halves of them, of a format that is known."""
    stored = store.tensors[quantised.name]
    in_a_byte = 2 if quantised.is_packed else 1
    return (
        quantised.fmt in ELEMENT_FORMATS
        and BITS[stored.dtype] in (4, 8)
        and n_bytes_of(stored) * in_a_byte == quantised.n
        and quantised.length % in_a_byte == 0
    )


def measure_codes(store: Store, quantised: Quantised, progress: Progress) -> CodeFacts:
    """Count the codes of one tensor."""
    parts = [(measure_codes(where, part, progress), first) for where, part, first in parts_of(store, quantised)]
    if parts:
        return joined(parts, quantised.fmt)
    if sum(store.tensors[scale.name].n for scale in quantised.scales) <= MANY_SCALES:
        return _Codes(store, quantised).measured(progress)
    with _one_at_a_time:  # factors that cannot be cut apart may take half a gigabyte
        return _Codes(store, quantised).measured(progress)


class _Codes:
    """A tensor about to be measured: its factors are read, its codes are not."""

    def __init__(self, store: Store, quantised: Quantised) -> None:
        self._store, self._quantised = store, quantised
        self._line_bytes = n_bytes_of(store.tensors[quantised.name]) // max(quantised.lines, 1)
        self._grid, self._blocks, factors = _grids(store, quantised)
        self._maxima = Maxima(self._blocks) if self._blocks is not None else None
        self._magnitude = Magnitude(quantised, factors, self._line_bytes * quantised.lines)

    def measured(self, progress: Progress) -> CodeFacts:
        fmt = ELEMENT_FORMATS[self._quantised.fmt]
        counts = Counts(fmt, self._quantised.is_packed, self._line_bytes)
        for first_line, raw, first_row, last_row in self._bands():
            magnitudes = counts.add(raw.reshape(-1), first_line * self._line_bytes)
            if self._maxima is not None:
                self._maxima.add(magnitudes.reshape(raw.shape), first_row, last_row)
            self._magnitude.add(raw, first_line)
            progress.add(raw.size)
        return CodeFacts(
            n=self._quantised.n,
            n_nan=counts.n_nan,
            nan_lines=counts.nan_lines.ranges(),
            n_zero=counts.n_zero,
            n_largest=counts.n_largest,
            largest=float(decode(np.array([counts.largest], np.uint8), fmt)[0]),
            histogram=self._magnitude.histogram,
            n_sampled=int(self._magnitude.histogram.sum()),
            n_blocks=self._n_blocks(),
            block_histogram=self._block_histogram(fmt.sign_bit),
            n_lost=self._n_lost(counts.largest),
            rms=self._magnitude.rms,
            rms_codes=self._magnitude.rms_codes,
        )

    def _bands(self) -> Iterator[tuple[int, Uint8Array, int, int]]:
        """First line, bytes (lines, bytes of a line), and first and last (exclusive) row of the grid."""
        name, width = self._quantised.name, self._line_bytes
        if self._blocks is not None:
            for first, last, first_row, last_row in self._blocks.spans(width):
                raw = self._store.read(name, first * width, last * width)
                yield first, raw.reshape(last - first, width), first_row, last_row
            return
        for first, raw in self._store.bands(name, lines=self._quantised.lines, chunk_bytes=BAND_BYTES):
            yield first, raw, 0, 0

    def _n_blocks(self) -> int:
        if self._maxima is not None:
            return self._maxima.of.size
        return 0 if self._grid is None else 1

    def _block_histogram(self, n_codes: int) -> Int64Array | None:
        if self._maxima is None:
            return None
        largest = self._maxima.of.reshape(-1)
        return counted(np.ascontiguousarray(largest[:: 1 + largest.size // _MANY_BLOCKS]), n_codes)

    def _n_lost(self, largest: int) -> int:
        if self._grid is None:
            return 0
        if self._maxima is None:
            return int(largest > 0 and self._grid.size == 1 and float(self._grid[0, 0]) == 0)
        if self._grid.shape != self._maxima.of.shape:  # one number a matrix, spread over its lines
            grid = self._grid[:: len(self._grid) // len(self._maxima.of)]
        else:
            grid = self._grid
        is_zero = grid == 0
        return int(np.count_nonzero(is_zero & (self._maxima.of > 0))) if is_zero.any() else 0


def _grids(store: Store, quantised: Quantised) -> tuple[Float32Array | None, Blocks | None, Dequantiser | None]:
    """Factors and blocks of the scale of the codes, and all factors; None where there are none, or they do not fit."""
    grids: dict[str, Float32Array] = {}
    of_codes: Blocks | None = None
    for scale in quantised.scales:
        stored = scale_numbers(store, scale)
        blocks = blocks_of(quantised, scale, stored.size)
        try:
            grids[scale.name] = grid_of(quantised, scale, stored)
        except ValueError:  # as many numbers as no grid of these blocks has
            return None, None, None
        if not fits(grids[scale.name], blocks, quantised):
            return None, None, None
        if scale is quantised.grid_scale:
            of_codes = blocks
    grid_scale = quantised.grid_scale
    grid = None if grid_scale is None else grids[grid_scale.name]
    return grid, of_codes, Dequantiser(store, quantised, grids)
