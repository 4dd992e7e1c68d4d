"""Roundings to few bits that weights may have gone through, from the reference's own largest values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.wording import each_cell, number
from fp8debug.formats import FORMATS, Float32Array, Format, fake_quantize
from fp8debug.recipes.mx import e8m0_scales

_BLOCKS = ((128, 128), (64, 64), (32, 32), (1, 128), (1, 32))
_FORMATS = ("E4M3", "E5M2", "E2M1")


def first_roundings(evidence: Evidence, every: int) -> Iterator[tuple[str, Float32Array]]:
    """In words, and the values of each `every`-th line after it; the likeliest first."""
    formats = dict.fromkeys([*([evidence.fmt.name] if evidence.fmt else []), *_FORMATS])
    x = evidence.x[::every]
    for what, cells, amax in _grids(evidence):
        for fmt in (FORMATS[name] for name in formats):
            for rule, scales in _scales(amax, fmt):
                spread = cells.spread(np.where(scales > 0, scales, 1))
                factors = spread if len(spread) == 1 else spread[::every]
                yield f"{fmt.name} with {rule.format(what)}", fake_quantize(x / factors, fmt) * factors


def _scales(amax: Float32Array, fmt: Format) -> Iterator[tuple[str, Float32Array]]:
    largest = f"the largest value of {{}} / {number(fmt.max)}"
    yield largest, amax / np.float32(fmt.max)
    yield f"{largest}, rounded up to a power of two", e8m0_scales(amax, fmt, "rceil")


def _grids(evidence: Evidence) -> Iterator[tuple[str, Cells, Float32Array]]:
    magnitude = np.abs(evidence.x)
    seen = {(evidence.cells.shape, evidence.cells.width)}
    yield each_cell(evidence), evidence.cells, evidence.cell_amax
    length = evidence.length
    blocks = [(f"each block of {lines} x {columns}", lines, columns) for lines, columns in _BLOCKS if columns < length]
    for what, lines, columns in [*blocks, ("each line", 1, length), ("each matrix", 0, length)]:
        # Blocks of several lines are whole only where all lines were taken.
        if lines != 1 and not evidence.is_whole:
            continue
        cells = evidence.cut(lines, columns)
        if (cells.shape, cells.width) not in seen:
            seen.add((cells.shape, cells.width))
            yield what, cells, cells.largest(magnitude)
