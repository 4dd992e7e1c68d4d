"""Numbers of a scale tensor, counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.facts import KEPT_SCALES, Int64Array, ScaleFacts
from fp8debug.analysis.checkpoint.grids import blocks_in, unswizzled
from fp8debug.analysis.checkpoint.measuring.counting import counted
from fp8debug.analysis.checkpoint.measuring.progress import Progress
from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.formats import FORMATS, BoolArray, Float32Array, Uint8Array

SMALLEST_NORMAL = np.float32(2.0**-126)
KEPT_PLACES = 8
_MEDIAN_OF = 1 << 16


def measure_scale(store: Store, scale: Scale, owner: Quantised | None, progress: Progress) -> ScaleFacts:
    """Count what one tensor of scales holds; `owner`: the codes that it belongs to."""
    if scale.encoding in FORMATS and not scale.is_swizzled and store.tensors[scale.name].n > KEPT_SCALES:
        return _facts_of_codes(scale, store.chunks(scale.name), progress)
    raw, shape = store.whole(scale.name), scale.shape
    progress.add(raw.size)
    if scale.is_swizzled and owner is not None and scale.block is not None:  # its padding is no scale
        grid = unswizzled(raw, *blocks_in(owner, scale.block))
        raw, shape = np.ascontiguousarray(grid).reshape(-1), grid.shape
    if scale.encoding in FORMATS and raw.size > KEPT_SCALES:
        return _facts_of_codes(replace(scale, shape=shape), [raw.reshape(-1)], None)
    values = numbers(raw, scale.encoding).reshape(-1)
    odd = np.flatnonzero(~(np.isfinite(values) & (values > 0)))[:KEPT_PLACES]
    return _facts(values, np.ones(values.size, np.int64), shape, odd, scale.encoding)


def _facts_of_codes(scale: Scale, chunks: Iterable[Uint8Array], progress: Progress | None) -> ScaleFacts:
    """Of numbers of 8 bits, of which there are no more than 256 different ones."""
    table = numbers(np.arange(256, dtype=np.uint8), scale.encoding)
    is_odd = ~(np.isfinite(table) & (table > 0))
    counts, odd, first = np.zeros(256, np.int64), list[int](), 0
    for raw in chunks:
        found = counted(raw, 256)
        if len(odd) < KEPT_PLACES and found[is_odd].any():
            odd += (first + np.flatnonzero(is_odd[raw])[:KEPT_PLACES]).tolist()
        counts += found
        first += raw.size
        if progress is not None:
            progress.add(raw.size)
    return _facts(table, counts, scale.shape, np.array(odd[:KEPT_PLACES], np.intp), scale.encoding)


def _facts(
    values: Float32Array, counts: Int64Array, shape: tuple[int, ...], odd: npt.NDArray[np.intp], encoding: str
) -> ScaleFacts:
    """The facts of some numbers, each of which occurs so many times."""

    def n_of(mask: BoolArray) -> int:
        return int(counts[mask].sum())

    is_finite = np.isfinite(values) & (counts > 0)
    finite = values[is_finite]
    magnitudes = np.abs(finite)
    is_tiny = is_finite & (np.abs(values) < SMALLEST_NORMAL) & (values != 0)
    n = int(counts.sum())
    return ScaleFacts(
        values=values.reshape(shape) if n <= KEPT_SCALES else None,
        n=n,
        n_nan=n_of(np.isnan(values)),
        n_inf=n_of(np.isinf(values)),
        n_zero=n_of(values == 0),
        n_negative=n_of(is_finite & (values < 0)),
        n_subnormal=0 if encoding == "E8M0" else n_of(is_tiny),
        n_one=n_of(values == 1),
        smallest=float(finite.min()) if finite.size else None,
        median=_median(finite, counts[is_finite]),
        largest=float(finite.max()) if finite.size else None,
        are_powers_of_two=_are_powers_of_two(magnitudes),
        odd_at=tuple(tuple(int(i) for i in np.unravel_index(at, shape)) if shape else () for at in odd),
    )


def _median(finite: Float32Array, counts: Int64Array) -> float | None:
    if not finite.size:
        return None
    if finite.size == counts.sum():
        part = finite[:: 1 + finite.size // _MEDIAN_OF]
        return float(np.median(part.astype(np.float64)))  # the mean of two of 3e38 is no infinity
    order = np.argsort(finite)
    reached = np.cumsum(counts[order])
    return float(finite[order[np.searchsorted(reached, (reached[-1] + 1) // 2)]])


def _are_powers_of_two(magnitudes: Float32Array) -> bool:
    for part in (magnitudes[:1024], magnitudes):  # most grids show at once that they are none
        if np.any((np.frexp(part)[0] != 0.5) & (part != 0)):
            return False
    return bool(np.any(magnitudes != 0))
