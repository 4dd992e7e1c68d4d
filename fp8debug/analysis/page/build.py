"""The page of a run, and runs on common axes for a page of several."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fp8debug.analysis.diagnosis import RuleBook
from fp8debug.analysis.page.columns import bounds, columns_note, in_spans, on_axes, span_of
from fp8debug.analysis.page.layers import shown_layers, told_operands
from fp8debug.analysis.page.metrics import JUDGED_FORMATS, metrics_of
from fp8debug.analysis.page.planes import Axes, planes, recorded_layers, recorded_steps
from fp8debug.analysis.page.queries import queries
from fp8debug.analysis.page.records import FormatRange, PageRun, ReportPage, Steps
from fp8debug.analysis.page.spread import kept_distributions
from fp8debug.analysis.page.training import training
from fp8debug.analysis.report import Report
from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif import WhatIf
from fp8debug.formats import FORMATS

MAX_COLUMNS, MAX_LAYERS = 1000, 500


def build_page(
    run: Run,
    report: Report,
    *,
    plan_text: str | None = None,
    whatif: WhatIf | None = None,
    rules: RuleBook | None = None,
    max_columns: int = MAX_COLUMNS,
    max_layers: int = MAX_LAYERS,
) -> ReportPage:
    """Everything that the page of one run shows.

    Args:
        run: an open run.
        report: of that run.
        plan_text: the fallback plan; None: nothing to change.
        whatif: recipes side by side; None: they could not be compared.
        rules: what the findings of the report come from; None: the rules as they are shipped.
        max_columns: columns of steps; where there are more steps, neighbours share one, and their worst value is shown.
        max_layers: layers; where there are more, those with findings and candidates come first, then the worst.
    """
    shown = page_run(run, report, max_columns=max_columns, max_layers=max_layers)
    formats = {plane.fmt for plane in shown.planes} | {found.fmt for found in shown.distributions}
    return ReportPage(
        report=report,
        run=shown,
        metrics=metrics_of(shown.planes, run.thresholds),
        formats=_ranges({*JUDGED_FORMATS[:2], *(one for fmt in formats if fmt for one in fmt.split(" x "))}),
        whatif=whatif,
        plan=plan_text,
        queries=queries(report, shown, whatif, rules),
    )


def page_run(
    run: Run,
    report: Report | None = None,
    *,
    name: str | None = None,
    layers: Sequence[str] | None = None,
    columns: tuple[Steps, int] | None = None,
    max_columns: int = MAX_COLUMNS,
    max_layers: int = MAX_LAYERS,
) -> PageRun:
    """One run on a page.

    Args:
        run: an open run.
        report: of that run: what it tells comes first where not all is shown.
        name: what the page calls it; None: the name of the run, or of its folder.
        layers: those to show, in this order; None: all, or the worst `max_layers`.
        columns: steps and span of columns to show; None: all recorded steps, in at most `max_columns`.
        max_columns: as in `build_page`.
        max_layers: as in `build_page`.
    """
    recorded = recorded_steps(run)
    steps, span = columns or (recorded, span_of(recorded, max_columns))
    layer_notes: tuple[str, ...] = ()
    if layers is None:
        layers, layer_notes = shown_layers(run, report, recorded_layers(run), max_layers)
    axes = Axes(tuple(layers), *bounds(steps, span), span)
    curves, curve_notes = training(run, recorded)
    first = told_operands(report) if report is not None else []
    kept, kept_notes = kept_distributions(run, axes.layers, first)
    return PageRun(
        name=name or run.manifest.name or run.path.name,
        path=str(run.path),
        layers=axes.layers,
        first_steps=axes.first_steps,
        last_steps=axes.last_steps,
        planes=planes(run, axes),
        training=curves,
        distributions=kept,
        notes=(*_run_notes(run), *layer_notes, *columns_note(steps, span), *curve_notes, *kept_notes),
        span=span,
    )


def aligned(pages: Sequence[PageRun], max_columns: int = MAX_COLUMNS) -> list[PageRun]:
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
    layers = _merged_order([page.layers for page in alike])
    shape = (len(layers), ids.size)
    return [
        replace(
            page,
            layers=layers,
            first_steps=first,
            last_steps=last,
            planes=tuple(
                replace(plane, values=on_axes(plane, [layers.index(name) for name in page.layers], at, shape))
                for plane in page.planes
            ),
        )
        for page, at in zip(alike, places, strict=True)
    ]


def _merged_order(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
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


def _run_notes(run: Run) -> Iterator[str]:
    if any(recipe.partition(":")[0] == "delayed" for recipe in run.manifest.recipes):
        yield (
            f"Simulated delayed scaling starts at scale 1: its first {run.thresholds['warmup_rolls']:.0f} amaxes are "
            "shown, but not judged."
        )


def _ranges(names: set[str]) -> tuple[FormatRange, ...]:
    return tuple(
        FormatRange(name, FORMATS[name].max, FORMATS[name].min_normal, FORMATS[name].min_subnormal)
        for name in FORMATS
        if name in names
    )
