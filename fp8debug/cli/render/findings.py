"""What is wrong: the head of a report. Errors and warnings in full, the rest in one entry each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp8debug.analysis.diagnosis import Evidence, Finding
from fp8debug.analysis.remedies import Remedy
from fp8debug.analysis.report import Report
from fp8debug.cli.render.missing import what_is_missing
from fp8debug.cli.render.remedies import remedy_text
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, display_width, escape, wrap
from fp8debug.cli.render.where import is_of_one, since, where
from fp8debug.cli.render.wording import count, listed, with_full_stop

_INDENT = " " * 3
_LABEL_WIDTH = 10
_BESIDE = _INDENT + " " * _LABEL_WIDTH
IN_FULL = ("error", "warning")
"""Severities of findings that are told in full."""
_SURE = {
    "certain": "certain: it can be read off what was recorded",
    "likely": "likely: beyond what healthy trainings show",
    "not_enough_evidence": "not enough evidence",
}


def findings_lines(report: Report, looks: Looks) -> Iterator[str]:
    """The section, or what is said where nothing was found."""
    full = [finding for finding in report.findings if finding.severity in IN_FULL]
    brief = [finding for finding in report.findings if finding.severity not in IN_FULL]
    yield _heading(report, looks)
    if not report.n_findings:
        yield from wrap(what_was_asked(report), looks.width)
    if report.verdict == "not_enough_evidence":
        yield from wrap(what_is_missing(report), looks.width)
    for text in rules_in_force(report):
        yield from (looks.yellow(line) for line in wrap(text, looks.width))
    for place, finding in enumerate(full, 1):
        yield ""
        yield from _in_full(place, finding, report.remedies, looks)
    if full and brief:
        yield ""
    for finding in brief:
        yield from _in_short(finding, looks)
    left = report.n_findings - len(report.findings)
    if left:
        yield ""
        yield f"  ... and {count(left, 'finding')} more: {looks.dim('--top N shows more')}"


def findings_counted(report: Report) -> str:
    """`2 errors, 1 warning and 3 less serious`; empty where nothing was found."""
    n_others = report.n_findings - report.n_errors - report.n_warnings
    parts = [
        count(report.n_errors, "error") if report.n_errors else "",
        count(report.n_warnings, "warning") if report.n_warnings else "",
        f"{n_others} less serious" if n_others else "",
    ]
    return listed(list(filter(None, parts)))


def _heading(report: Report, looks: Looks) -> str:
    if report.n_errors or report.n_warnings:
        order = ", worst first" if report.n_findings > 1 else ""
        text = f"{count(report.n_findings, 'FINDING', 'FINDINGS')}: {findings_counted(report)}{order}"
        return looks.bold(looks.red(text) if report.n_errors else looks.yellow(text))
    text = f"NO ERROR AND NO WARNING; {report.n_findings} to know of" if report.n_findings else "NO FINDING"
    if report.verdict == "not_enough_evidence":
        return looks.bold(looks.yellow("NOT ENOUGH EVIDENCE FOR A VERDICT"))
    return looks.bold(looks.green(text))


def what_was_asked(report: Report) -> str:
    """What rules were asked of that found nothing."""
    run = report.run
    steps = f"{count(run.n_steps, 'step')}, {run.n_sampled_steps:,} of them sampled" if run.n_steps else "no whole step"
    return f"No rule found anything in {count(report.health.n_operands, 'operand')} and {steps}."


def rules_in_force(report: Report) -> Iterator[str]:
    """What the user changed of the rules."""
    rules = report.rules
    for label, words in (
        ("rules changed", rules.changed),
        ("rules switched off", rules.disabled),
        ("rules of your own", rules.own_files),
    ):
        if words:
            yield f"{label}: {escape('; '.join(words))}"


def _in_full(place: int, finding: Finding, remedies: Sequence[Remedy], looks: Looks) -> Iterator[str]:
    word = finding.severity.upper()
    head, *rest = wrap(f"{word}: {with_full_stop(escape(finding.message))}", looks.width, indent=_INDENT)
    painted = looks.red(word) if finding.severity == "error" else looks.yellow(word)
    yield f"{f'{place}.':<{len(_INDENT)}}{looks.bold(painted)}{head[len(_INDENT) + len(word) :]}"
    yield from rest
    yield from _fact("where", where(finding), looks)
    yield from _fact("since", since(finding), looks)
    yield from _evidence(finding, looks)
    yield from _fact("sure", how_sure(finding), looks)
    yield from _fact("do", escape(finding.advice), looks)
    yield from _fact("remedy", remedy_text(finding, remedies), looks)
    yield from _fact("more", escape(finding.page), looks)


def _fact(label: str, text: str, looks: Looks) -> Iterator[str]:
    if not text:
        return
    head, *rest = wrap(text, looks.width, indent=_BESIDE, break_long=True)
    yield f"{_INDENT}{looks.dim(label)}{head[len(_INDENT) + len(label) :]}"
    yield from rest


def _evidence(finding: Finding, looks: Looks) -> Iterator[str]:
    lines = columns([_cells(entry) for entry in finding.evidence], right=(False, True, False))
    label = "evidence" if is_of_one(finding) else "worst"
    if any(display_width(line) > looks.width - len(_INDENT) - _LABEL_WIDTH for line in lines):
        lines = [" ".join(_cells(entry)) for entry in finding.evidence]
    for number, line in enumerate(lines):
        yield from (
            _fact(label, line, looks) if number == 0 else wrap(line, looks.width, indent=_BESIDE, break_long=True)
        )


def _cells(entry: Evidence) -> tuple[str, ...]:
    return escape(entry.title), escape(entry.value), f"(healthy {escape(entry.healthy)})" if entry.healthy else ""


def how_sure(finding: Finding) -> str:
    """How it is known, and what would make it surer."""
    text = _SURE[finding.confidence]
    return f"{text}; to know: {escape(finding.needs)}" if finding.needs else text


def _in_short(finding: Finding, looks: Looks) -> Iterator[str]:
    needs = f"to know: {escape(finding.needs)}" if finding.needs else ""
    known = "; ".join(filter(None, (where(finding), since(finding), needs)))
    text = f"- {finding.severity}: {escape(finding.message)}{f' ({known})' if known else ''}: {escape(finding.page)}"
    yield from wrap(text, looks.width, hanging="  ", break_long=True)
