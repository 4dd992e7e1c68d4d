"""Several runs on the same layers and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.page.columns import in_spans
from fp8debug.analysis.page.records import Floats, PageRun, Plane


def aligned(pages: Sequence[PageRun], max_columns: int = 1000) -> list[PageRun]:
    """The same runs with one list of layers and one of columns; NaN where a run has nothing.

    Columns become as wide as the widest of them, and wider where together they would be more than `max_columns`.
    """
    span = math.lcm(*(page.span for page in pages))
    steps = np.unique(np.concatenate([page.first_steps for page in pages]))
    if span == 1 and steps.size > max_columns:
        span = int(np.gcd.reduce(np.diff(steps)))
    while np.unique(steps // span).size > max_columns:
        span *= 2
    alike = [page if page.span == span else in_spans(page, span) for page in pages]
    ids = np.unique(np.concatenate([page.first_steps // span for page in alike]))
    first, last = np.full(ids.size, np.iinfo(np.int64).max), np.full(ids.size, -1, dtype=np.int64)
    places = [np.searchsorted(ids, page.first_steps // span) for page in alike]
    for page, at in zip(alike, places, strict=True):
        first[at], last[at] = np.minimum(first[at], page.first_steps), np.maximum(last[at], page.last_steps)
    layers = merged_order([page.layers for page in alike])
    shape = (len(layers), ids.size)
    return [
        replace(
            page,
            layers=layers,
            first_steps=first,
            last_steps=last,
            planes=tuple(
                replace(plane, values=_on_axes(plane, [layers.index(name) for name in page.layers], at, shape))
                for plane in page.planes
            ),
        )
        for page, at in zip(alike, places, strict=True)
    ]


def merged_order(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """All names once: those of the first list, each further one behind the name that comes before it in its own."""
    order = list(lists[0])
    for names in lists[1:]:
        known, place = set(order), 0
        for name in names:
            if name in known:
                place = order.index(name) + 1
            else:
                order.insert(place, name)
                place += 1
    return tuple(order)


def _on_axes(plane: Plane, rows: Sequence[int], columns: npt.NDArray[np.intp], shape: tuple[int, int]) -> Floats:
    """The values of a plane at other rows and columns of a larger plane, NaN elsewhere."""
    values: Floats = np.full(shape, np.nan, dtype=np.float32)
    values[np.ix_(np.array(rows, dtype=np.intp), columns)] = plane.values
    return values
