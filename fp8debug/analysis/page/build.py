"""The page of a run, and runs on common axes for a page of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fp8debug.analysis.diagnosis import RuleBook
from fp8debug.analysis.page.align import aligned, merged_order
from fp8debug.analysis.page.columns import bounds, columns_note, span_of
from fp8debug.analysis.page.layers import shown_layers, told_operands
from fp8debug.analysis.page.metrics import JUDGED_FORMATS, metrics_of
from fp8debug.analysis.page.planes import Axes, planes, recorded_layers, recorded_steps
from fp8debug.analysis.page.queries import queries
from fp8debug.analysis.page.records import FormatRange, PageRun, ReportPage, Steps
from fp8debug.analysis.page.spread import kept_distributions
from fp8debug.analysis.page.training import training
from fp8debug.analysis.report import Report
from fp8debug.analysis.run import Run
from fp8debug.analysis.scope import Scope
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
    return ReportPage(
        report=report,
        run=shown,
        metrics=metrics_of(shown.planes, run.thresholds),
        formats=formats_of([shown]),
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
        notes=(*_run_notes(run, report), *layer_notes, *columns_note(steps, span), *curve_notes, *kept_notes),
        span=span,
    )


def page_runs(
    runs: Sequence[Run],
    names: Sequence[str],
    *,
    max_columns: int = MAX_COLUMNS,
    max_layers: int = MAX_LAYERS,
) -> list[PageRun]:
    """Several runs on a page, side by side: the same layers and columns in all, NaN where a run has nothing.

    Args:
        runs: open runs.
        names: what the page calls them.
        max_columns: as in `build_page`.
        max_layers: as in `build_page`, over all runs.
    """
    recorded = [recorded_layers(run) for run in runs]
    shown = [shown_layers(run, None, own, max_layers)[0] for run, own in zip(runs, recorded, strict=True)]
    layers = merged_order(shown)
    if len(layers) > max_layers:  # each run has its own worst: those that all runs show come first
        in_all = [layer for layer in layers if all(layer in own for own in shown)]
        kept = set([*in_all, *(layer for layer in layers if layer not in in_all)][:max_layers])
        layers = tuple(layer for layer in layers if layer in kept)
    n_recorded = len({layer for own in recorded for layer in own})
    note = f"{len(layers):,} of {n_recorded:,} layers are shown: the worst of each run."
    pages = aligned(
        [
            page_run(run, name=name, layers=layers, max_columns=max_columns)
            for run, name in zip(runs, names, strict=True)
        ],
        max_columns,
    )
    return pages if len(layers) == n_recorded else [replace(page, notes=(note, *page.notes)) for page in pages]


_SHOWN_OTHERWISE = """
select
    exists (from stored.scales where source = 'simulated' and starts_with(recipe, 'delayed')),
    exists (from stored.errors where alternate)
"""


def _run_notes(run: Run, report: Report | None) -> Iterator[str]:
    if report is not None and report.scope != Scope():
        yield "Only a part of the run was looked at; the SQL on this page asks the whole run."
    has_starts, has_alternates = run.sql(_SHOWN_OTHERWISE).fetchall()[0]
    if has_starts:
        yield (
            f"Simulated delayed scaling starts at scale 1: its first {run.thresholds['warmup_rolls']:.0f} amaxes are "
            "shown, but not judged."
        )
    if has_alternates:
        yield (
            "Of a tensor that was recorded in two formats under one recipe, the recipe's own is drawn; the view "
            "`operand_steps` has both."
        )


def formats_of(runs: Sequence[PageRun]) -> tuple[FormatRange, ...]:
    """Those that anything on a page is in, and the two that training is mostly in."""
    of_planes = {plane.fmt for run in runs for plane in run.planes}
    of_values = {found.fmt for run in runs for found in run.distributions}
    names = {*JUDGED_FORMATS[:2], *(one for fmt in of_planes | of_values if fmt for one in fmt.split(" x "))}
    return tuple(
        FormatRange(name, FORMATS[name].max, FORMATS[name].min_normal, FORMATS[name].min_subnormal)
        for name in FORMATS
        if name in names
    )
