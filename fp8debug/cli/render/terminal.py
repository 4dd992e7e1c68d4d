"""The report as text for a person: what was run, what is wrong, what is fine, what to do next."""

from __future__ import annotations

from collections.abc import Iterator

from fp8debug.analysis.report import Report
from fp8debug.cli.render.commands import short_sql
from fp8debug.cli.render.findings import findings_lines
from fp8debug.cli.render.fine import fine_lines
from fp8debug.cli.render.next_steps import next_lines
from fp8debug.cli.render.operands import candidates_lines, isolated_lines, watch_list_lines
from fp8debug.cli.render.remedies import remedies_lines
from fp8debug.cli.render.run_facts import run_lines
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, wrap
from fp8debug.cli.render.wording import with_full_stop

_MAX_PROBLEMS = 20


def render_report(report: Report, looks: Looks, *, run_path: str, with_remedies: bool = False) -> str:
    """The whole report, ending in a newline.

    Args:
        report: what is shown.
        looks: of the stream it is for.
        run_path: how the commands name the run.
        with_remedies: show all that was tried, too.
    """
    sections = (
        run_lines(report, looks, run_path),
        findings_lines(report, looks),
        remedies_lines(report.remedies if with_remedies else (), looks),
        fine_lines(report, looks),
        candidates_lines(report, looks),
        watch_list_lines(report, looks),
        isolated_lines(report, looks, run_path),
        _problems(report, looks, run_path),
        next_lines(report, looks, run_path),
    )
    return "\n".join("\n".join(lines) + "\n" for section in sections if (lines := list(section)))


def _problems(report: Report, looks: Looks, run_path: str) -> Iterator[str]:
    problems = report.untold_problems
    if not problems:
        return
    yield looks.bold(looks.red("PROBLEMS: what went wrong or is missing"))
    for problem in problems[:_MAX_PROBLEMS]:
        times = f" ({problem.count:,} times)" if problem.count > 1 else ""
        yield from wrap(f"- {with_full_stop(escape(problem.message))}{times}", looks.width, hanging="  ")
    left = len(problems) - _MAX_PROBLEMS
    if left > 0:
        yield f"  ... and {left:,} more: {short_sql(run_path, 'from events')}"
