"""Which lines of a pair are looked at, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fp8debug.analysis.checkpoint.numbers import numbers, unpacked
from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Rows
from fp8debug.analysis.checkpoint.reference.hypotheses.evidence import Evidence
from fp8debug.analysis.checkpoint.reference.hypotheses.sample import MOST_ELEMENTS
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.store import n_bytes_of
from fp8debug.formats import FORMATS, Uint8Array, decode

RUN_LINES = 16
"""Lines are taken in runs of so many, so that boundaries of blocks can be seen between them."""
_GOLDEN = 0.6180339887498949


def gather(pair: Pair, near: Sequence[int] = (), most_elements: int = MOST_ELEMENTS) -> Evidence:
    """Take lines of a pair: all of a small one, runs that are spread over a large one.

    Args:
        pair: not empty.
        near: lines that are to be among them, with some after them: where the error is.
        most_elements: of a pair that is to be taken whole.
    """
    lines = _chosen(pair.lines, max(1, pair.length), most_elements)
    more = [np.arange(line, min(pair.lines, line + RUN_LINES)) for line in near]
    lines = np.unique(np.concatenate([lines, *more])).astype(np.intp)
    runs = np.split(lines, np.flatnonzero(np.diff(lines) != 1) + 1)
    spans = [(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]
    x = np.concatenate([pair.reference_lines.values(first, last) for first, last in spans])
    raw = np.concatenate([_raw(pair, first, last) for first, last in spans])
    if isinstance(pair.tensor, Quantised):
        codes = decode(raw, FORMATS[pair.tensor.fmt])
    else:
        codes, raw = numbers(raw, pair.tensor.dtype).reshape(x.shape), raw[:, :0]
    usable = np.isfinite(x)
    n_nonfinite = int(np.count_nonzero(usable & ~np.isfinite(codes)))
    x, codes = finite(x), np.where(usable, finite(codes), np.float32(0))
    return Evidence(pair, lines, x, raw, codes, n_nonfinite)


def _chosen(lines: int, length: int, most_elements: int) -> Rows:
    if lines * length <= most_elements:
        return np.arange(lines)
    runs = max(4, most_elements // length // RUN_LINES)
    places = lines // RUN_LINES
    if runs >= places:
        return np.arange(lines)
    # Evenly spread, but not in step with any grid.
    starts = ((np.arange(runs) + np.arange(runs) * _GOLDEN % 1) * (places / runs)).astype(np.intp)
    chosen = np.unique(np.minimum(starts, places - 1))
    return np.asarray((chosen[:, None] * RUN_LINES + np.arange(RUN_LINES)).reshape(-1), np.intp)


def _raw(pair: Pair, first: int, last: int) -> Uint8Array:
    line_bytes = n_bytes_of(pair.store.tensors[pair.tensor.name]) // max(1, pair.tensor.lines)
    raw = pair.store.read(pair.tensor.name, first * line_bytes, last * line_bytes).reshape(last - first, line_bytes)
    if isinstance(pair.tensor, Quantised) and pair.tensor.is_packed:
        return unpacked(raw, pair.tensor.is_high_first)
    return raw
