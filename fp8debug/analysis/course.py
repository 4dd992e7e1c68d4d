"""How suspects went over the steps, and which recipes spare them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fp8debug.analysis.judged import JudgedOperand
from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import Point, Series, Suspect, Verdict

MAX_POINTS = 60

# Neighbouring steps share a point, so that a month of steps is no more text than a day.
_SERIES = """
with per_step as (
    select
        layer, tensor, recipe, step, min(sqnr_db) as sqnr_db, min(sqnr_low_db) as sqnr_low_db,
        arg_max(gain, abs(gain - 1)) as gain, max(underflow) as underflow, max(overflow) as overflow,
        max(scale_gap_bits) as scale_gap_bits
    from {source}
    where not alternate and (layer, tensor, recipe) in (
        select (unnest($layers::varchar[]), unnest($tensors::varchar[]), unnest($recipes::varchar[]))
    )
    group by layer, tensor, recipe, step
),
placed as (
    select *, ntile($points) over (partition by layer, tensor, recipe order by step) as place
    from per_step
)
select
    layer, tensor, recipe, min(step), max(step), min(sqnr_db), min(sqnr_low_db), arg_max(gain, abs(gain - 1)),
    max(underflow), max(overflow), max(scale_gap_bits)
from placed
group by layer, tensor, recipe, place
order by layer, tensor, recipe, place
"""
_SERIES_METRICS = ("sqnr_db", "sqnr_low_db", "gain", "underflow", "overflow", "scale_gap_bits")


def with_details(run: Run, found: Sequence[Suspect], judged: Iterable[JudgedOperand]) -> tuple[Suspect, ...]:
    """The same suspects with their series and the recipes under which they are fine; at most two queries."""
    if not found:
        return ()
    # Only the gap is known at steps that were not sampled, and only the view of all evidence has those.
    of_gap = [suspect for suspect in found if metric_that_hurts(suspect.worst) == "scale_gap_bits"]
    sampled = [suspect for suspect in found if suspect not in of_gap]
    rows = [*_series_rows(run, "sampled_evidence", sampled), *_series_rows(run, "evidence", of_gap)]
    points = _points_by_operand(rows)
    under: dict[tuple[str, str], set[str]] = {}
    for operand in judged:
        under.setdefault((operand.layer, operand.tensor), set()).add(operand.recipe)
    return tuple(
        replace(
            suspect,
            series=_series(suspect.worst, points.get((suspect.layer, suspect.tensor, suspect.worst.recipe), ())),
            fine_under=_fine_under(suspect, under.get((suspect.layer, suspect.tensor), ())),
        )
        for suspect in found
    )


def _series_rows(run: Run, source: str, found: Sequence[Suspect]) -> list[tuple[Any, ...]]:
    if not found:
        return []
    return run.sql(
        _SERIES.format(source=source),
        points=MAX_POINTS,
        layers=[suspect.layer for suspect in found],
        tensors=[suspect.tensor for suspect in found],
        recipes=[suspect.worst.recipe for suspect in found],
    ).fetchall()


def _fine_under(suspect: Suspect, judged: Iterable[str]) -> tuple[str, ...]:
    listed = {verdict.recipe for verdict in suspect.verdicts}
    return tuple(recipe for recipe in sorted(judged) if recipe not in listed)


_Place = tuple[int, int, dict[str, float | None]]


def _points_by_operand(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[str, str, str], list[_Place]]:
    points: dict[tuple[str, str, str], list[_Place]] = {}
    for layer, tensor, recipe, first, last, *cells in rows:
        values = dict(zip(_SERIES_METRICS, cells, strict=True))
        points.setdefault((layer, tensor, recipe), []).append((first, last, values))
    return points


def metric_that_hurts(verdict: Verdict) -> str:
    """The metric by which a person sees best why this operand is listed."""
    if verdict.level == "watch" and "sqnr" not in verdict.criteria:
        by = {"underflow": "underflow", "overflow": "overflow", "gap": "scale_gap_bits"}
        return next((by[criterion] for criterion in verdict.criteria if criterion in by), "sqnr_db")
    if "sqnr" in verdict.criteria or "underflow" in verdict.criteria:
        low, all_values = verdict.sqnr_low_db, verdict.sqnr_db
        return "sqnr_low_db" if low is not None and (all_values is None or low < all_values - 1) else "sqnr_db"
    return "scale_gap_bits" if "gap" in verdict.criteria else "gain"


def _series(verdict: Verdict, rows: Iterable[_Place]) -> Series:
    metric = metric_that_hurts(verdict)
    points = [
        Point(first, last, value)
        for first, last, values in rows
        if (value := values[metric]) is not None and math.isfinite(value)
    ]
    return Series(metric, tuple(points))
