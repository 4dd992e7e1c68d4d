"""Candidates for BF16 and the watch list, one row an operand and recipe."""

from __future__ import annotations

from collections.abc import Sequence

from fp8debug.analysis.course import metric_that_hurts
from fp8debug.analysis.report import Report
from fp8debug.analysis.suspects import Suspect, Verdict
from fp8debug.cli.render.html.elements import (
    NOTHING,
    Markup,
    cell,
    column,
    element,
    joined,
    number,
    prose,
    row_head,
    table,
    text,
)
from fp8debug.cli.render.html.links import Cells
from fp8debug.cli.render.missing import what_is_missing
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.suspect_table import HEADER, LEGEND, suspect_cells
from fp8debug.cli.render.wording import count, listed, step_range

_RANKED = (
    "Operands that FP8 damages step after step. Ranked by dB lost: how far the signal-to-noise ratio of the cast "
    "(SQNR) is below what it is for a healthy tensor."
)
_UNUSUAL = "Unusual, but not proven harmful: healthy trainings have such operands too."


def candidates_body(report: Report, cells: Cells) -> Markup:
    """The candidates, or why there are none."""
    if report.verdict == "not_enough_evidence":  # which is what the page begins with
        return NOTHING
    if report.n_candidates:
        left = report.n_candidates - len(report.candidates)
        return joined([element("p", text(_RANKED)), _table(report.candidates, cells), _and_more(left, "candidate")])
    if not report.is_judged:
        return element("p", prose(what_is_missing(report)))
    judged = [entry.recipe for entry in report.judged if entry.n_operands]
    caveats = report.ranks.caveats if report.ranks is not None else ()
    sentences = [f"No judged operand needs to fall back to BF16 under {listed(judged, 'or')}."]
    return joined(element("p", text(words)) for words in (*sentences, *(f"But {caveat}." for caveat in caveats)))


def watch_body(report: Report, cells: Cells) -> Markup:
    """The watch list; nothing where it is empty."""
    if not report.n_watch:
        return NOTHING
    left = report.n_watch - len(report.watch)
    return joined([element("p", text(_UNUSUAL)), _table(report.watch, cells), _and_more(left, "operand")])


def _table(suspects: Sequence[Suspect], cells: Cells) -> Markup:
    numbers = HEADER[:-1]  # the last is the course over the steps, which the page draws
    head = [column("operand"), column("under"), *(column(name, is_number=True) for name in numbers), column("why")]
    rows = [_row(suspect, verdict, cells) for suspect in suspects for verdict in suspect.verdicts]
    return joined([table("Operands", head, rows), element("p", text(_legend()), class_="note")])


def _row(suspect: Suspect, verdict: Verdict, cells: Cells) -> list[Markup]:
    _, *numbers, _ = suspect_cells(suspect, verdict, Looks())
    metric = metric_that_hurts(verdict)
    known = metric if metric in cells.metrics else None
    level = "" if verdict.level == suspect.worst.level else " (watch only)"
    steps = step_range(verdict.first_step, verdict.last_step)
    fine = f" Fine under {listed(suspect.fine_under)}." if suspect.fine_under and verdict is suspect.worst else ""
    return [
        row_head(cells.link(suspect.layer, suspect.tensor, verdict.first_step, known)),
        cell(text(f"{verdict.recipe} ({verdict.fmt}){level}")),
        *(number(words) for words in numbers),
        cell(text(f"{steps}: {verdict.reason}.{fine}")),
    ]


def _legend() -> str:
    return LEGEND.partition("; course")[0] + "."


def _and_more(left: int, noun: str) -> Markup:
    return element("p", prose(f"... and {count(left, noun)} more: `--top N` shows more.")) if left else NOTHING
