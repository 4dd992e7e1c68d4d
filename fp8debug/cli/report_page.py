"""What `fp8debug report --html` shows beside the report: the page's data, a what-if on some steps, a plan."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from fp8debug.errors import Fp8DebugError

if TYPE_CHECKING:
    from fp8debug.analysis.diagnosis import RuleBook
    from fp8debug.analysis.report import Report
    from fp8debug.analysis.run import Run
    from fp8debug.analysis.whatif import WhatIf
    from fp8debug.cli.render.plan import Planned

Reopen = Callable[[], AbstractContextManager["Run"]]

PAGE_TOP = 25
_NOT_COUNTED = (
    "No values were counted, so nothing can be worked out from them. `fp8debug attach --every N` counts them."
)
_LOGS = "Debug logs have statistics alone, not the values that this is worked out from."


def report_page(run: Run, report: Report, reopen: Reopen, *, rules: RuleBook, run_path: str) -> str:
    """The page of a run as text.

    Args:
        run: open, at the scope of the report.
        report: what the page says.
        reopen: opens the whole run, whose histories are whole.
        rules: what its findings come from.
        run_path: how the commands on the page name the run.
    """
    from fp8debug.analysis.page.build import build_page
    from fp8debug.cli.render.html.report import Answered, report_html

    answer, no_whatif, notes = _whatif(run, report, reopen)
    planned, no_plan = _planned(run)
    text = planned.export.text if planned is not None and planned.export.plan.entries else None
    page = build_page(run, report, plan_text=text, whatif=answer, rules=rules)
    return report_html(page, Answered(planned, no_plan, no_whatif, notes), run_path=run_path)


def _whatif(run: Run, report: Report, reopen: Reopen) -> tuple[WhatIf | None, str, tuple[str, ...]]:
    """The answer, or why there is none, and what was left out of it."""
    from fp8debug.analysis.whatif import default_recipes, whatif
    from fp8debug.cli.whatif_part import part_of

    part = part_of(run, report)
    if not part.steps:
        return None, _LOGS if report.given is not None else _NOT_COUNTED, ()
    steps = [(step, step) for step in part.steps]
    pattern = part.pattern or report.scope.layer or None
    try:
        with reopen() as whole:
            answer = whatif(whole, default_recipes(whole), layer=pattern, steps=steps, per_layer=False)
    except Fp8DebugError as error:
        return None, _sentence(error), ()
    return answer, "", (part.note,) if part.note else ()


def _planned(run: Run) -> tuple[Planned | None, str]:
    """The plan as `fp8debug plan` makes it, or why there is none."""
    from fp8debug.cli.planning import Wish, planned_for

    try:
        return planned_for(run, Wish("fp8debug", None, None, None, False, "te", None)), ""
    except Fp8DebugError as error:
        return None, _sentence(error)


def _sentence(error: Fp8DebugError) -> str:
    text = " ".join(str(error).split())
    return text[:1].upper() + text[1:]
