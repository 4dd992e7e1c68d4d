"""Which steps share a column, and which of their values it shows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.page.limits import with_limits
from fp8debug.analysis.page.records import PageRun, Plane, Steps
from fp8debug.analysis.page.sources import plane_sql, worst_of

_WORST_IS_SHOWN = "A cell shows the worst of them."


def span_of(steps: Steps, most: int) -> int:
    """The smallest span of columns with which there are at most `most` of them.

    1 where each step can have its own column, else the distance that recorded steps have in common, doubled until the
    columns are few enough: so columns of halved pages hold whole columns of the page before.
    """
    if steps.size <= most:
        return 1
    span = int(np.gcd.reduce(np.diff(steps)))
    while _n_columns(steps, span) > most:
        span *= 2
    return span


def bounds(steps: Steps, span: int) -> tuple[Steps, Steps]:
    """First and last step of each column."""
    _, first, count = np.unique(steps // span, return_index=True, return_counts=True)
    return steps[first], steps[first + count - 1]


def columns_note(steps: Steps, span: int) -> tuple[str, ...]:
    """The sentence that says so; none where a column is a step."""
    first, last = bounds(steps, span)
    if span == 1 or first.size == steps.size:
        return ()
    return (_sentence(first, last),)


def merge_columns(run: PageRun, by: int) -> PageRun:
    """The same run in fewer columns: `by` of them, or a few more, become one that shows their worst value."""
    if not run.first_steps.size:
        return run
    most = math.ceil(run.first_steps.size / by)
    span = run.span * by
    while _n_columns(run.first_steps, span) > most:
        span *= 2
    return in_spans(run, span)


def in_spans(run: PageRun, span: int) -> PageRun:
    """The same run in columns of a span that is a multiple of its own."""
    places = np.unique(run.first_steps // span, return_inverse=True)[1]
    first = np.unique(places, return_index=True)[1]
    last = np.append(first[1:], places.size) - 1
    notes = [note for note in run.notes if not note.endswith(_WORST_IS_SHOWN)]
    if first.size < places.size or len(notes) < len(run.notes):
        notes.append(_sentence(run.first_steps[first], run.last_steps[last]))
    return replace(
        run,
        first_steps=run.first_steps[first],
        last_steps=run.last_steps[last],
        planes=tuple(_merged(plane, first, span) for plane in with_limits(run.planes, run.span)),
        notes=tuple(notes),
        span=span,
    )


def _merged(plane: Plane, first: npt.NDArray[np.intp], span: int) -> Plane:
    values = worst_of(plane.metric, plane.values, first)
    return replace(plane, values=values, sql=plane_sql(plane, span))


def _n_columns(steps: Steps, span: int) -> int:
    return int(np.unique(steps // span).size)


def _sentence(first: Steps, last: Steps) -> str:
    return (
        f"Steps {int(first[0]):,} to {int(last[-1]):,} are shown in {first.size:,} columns of neighbouring steps. "
        f"{_WORST_IS_SHOWN}"
    )
