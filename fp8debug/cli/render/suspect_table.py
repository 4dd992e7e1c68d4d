"""Operands that a finding tells of: their numbers as a table for each recipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8debug.analysis.suspects import Series, Suspect, Verdict
from fp8debug.cli.render.sparkline import sparkline
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import chunks, columns, display_width, escape, named_columns, wrap
from fp8debug.cli.render.wording import METRICS, operand

_INDENT = " " * 2
_COURSE_WIDTH = 12
_METRICS = ("sqnr_db", "sqnr_low_db", "underflow", "overflow", "gain", "scale_gap_bits")
HEADER = ("dB lost", "SQNR", "99 %", "zero %", "clip %", "gain", "bits", "hit", "course")
_RIGHT = (False, True, True, True, True, True, True, True, True, False)
LEGEND = (
    "SQNR in dB, of all values and of the smallest 99 %; bits: scale above the ideal one; hit: of so many steps; "
    "course: the metric that hurts, over the steps."
)


def suspect_table(suspects: Sequence[Suspect], looks: Looks) -> Iterator[str]:
    """One table a recipe, the recipe of the worst operand first."""
    by_recipe: dict[str, list[tuple[Suspect, Verdict]]] = {}
    for suspect in suspects:
        for verdict in suspect.verdicts:
            by_recipe.setdefault(verdict.recipe, []).append((suspect, verdict))
    for recipe, entries in by_recipe.items():
        yield from _table(recipe, entries, looks)
    yield from (looks.dim(line) for line in wrap(LEGEND, looks.width, indent=_INDENT))


def _table(recipe: str, entries: Sequence[tuple[Suspect, Verdict]], looks: Looks) -> Iterator[str]:
    rows = [suspect_cells(suspect, verdict, looks) for suspect, verdict in entries]
    filled = [any(row[i] not in ("", "0") for row in rows) for i in range(len(rows[0]))]
    header = ("", *HEADER)
    kept = [tuple(c for c, keep in zip(row, filled, strict=True) if keep) for row in (header, *rows)]
    right = tuple(flag for flag, keep in zip(_RIGHT, filled, strict=True) if keep)
    title, width = f"under {escape(recipe)}", looks.width - len(_INDENT)
    titled = [(title, *kept[0][1:]), *kept[1:]]
    if max(map(display_width, columns(titled, right=right))) > width:
        yield from (looks.dim(line) for line in wrap(title, looks.width, indent=_INDENT))
        titled[0] = kept[0]
    first, *body = named_columns(titled, width, right=right)
    yield _INDENT + looks.dim(first)
    yield from (_INDENT + piece for line in body for piece in chunks(line, width))


def suspect_cells(suspect: Suspect, verdict: Verdict, looks: Looks) -> tuple[str, ...]:
    """Its name and its numbers under a recipe; after the name as many as `HEADER` has, empty where not known."""
    lost = "" if verdict.db_lost is None else f"{verdict.db_lost:.1f}"
    numbers = (_number(name, getattr(verdict, name)) for name in _METRICS)
    n_hits, n_steps = max(
        (verdict.n_hit_steps, verdict.n_observed_steps), (verdict.n_gap_hit_steps, verdict.n_gap_steps)
    )
    course = _course(suspect.series, verdict, looks) if verdict is suspect.worst else ""
    return operand(suspect.layer, suspect.tensor), lost, *numbers, f"{n_hits}/{n_steps}", course


def _number(name: str, value: float | None) -> str:
    return "" if value is None else METRICS[name].text(value).partition(" ")[0]


def _course(series: Series | None, verdict: Verdict, looks: Looks) -> str:
    if series is None or len(series.points) < 2:
        return ""
    values = [point.value for point in series.points]
    is_sqnr = series.metric.startswith("sqnr")
    healthy = 1.0 if series.metric == "gain" else 0.0
    return sparkline(
        values,
        low=0.0 if is_sqnr else min(healthy, *values),
        high=verdict.healthy_sqnr_db if is_sqnr else max(healthy, *values),
        width=_COURSE_WIDTH,
        worst=min if is_sqnr else max,
        ascii_only=looks.ascii_only,
    )
