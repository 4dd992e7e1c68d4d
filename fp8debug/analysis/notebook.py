"""What a notebook shows of runs, reports, findings, what-ifs and audits: small HTML, no scripts or styles of its own.

Names come from somebody else's files: everything that is not written here is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import singledispatch

import duckdb

from fp8debug.analysis.checkpoint import Audit, CheckFinding
from fp8debug.analysis.diagnosis.finding import Finding, Place
from fp8debug.analysis.facts import RunFacts, run_facts
from fp8debug.analysis.report import Report, build_report
from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import Suspect
from fp8debug.analysis.views import sql_files
from fp8debug.analysis.whatif.answer import WhatIf
from fp8debug.analysis.whatif.errors import OperandErrors
from fp8debug.errors import Fp8DebugError, escape

_MOST_FINDINGS = 10
_MOST_PLACES = 5
_MOST_OPERANDS = 20
_VERDICTS = {
    "findings": "Something is wrong.",
    "candidates": "No error or warning, but some operands would suffer.",
    "none": "Nothing found that would suffer.",
    "not_enough_evidence": "Not enough evidence to judge any operand.",
}
_COLOURS = {"error": "#b3261e", "warning": "#8a5a00"}


@singledispatch
def html_of(record: object) -> str:
    """The HTML form of a record.

    Raises:
        TypeError: it has none.
    """
    raise TypeError(f"no HTML form of {type(record).__name__}")


@html_of.register
def _run(run: Run) -> str:
    """Where it is, how far it went, what the report would say, and what can be asked."""
    title = f"<b>Run</b> <code>{_text(str(run.path))}</code>"
    try:
        facts = run_facts(run)
    except duckdb.ConnectionException:
        return f"<div>{title}<p>It is closed; <code>fp8debug.open_run</code> opens it again.</p></div>"
    if run.notice is not None:
        return f"<div>{title}<p>{_text(run.notice)}.</p></div>"
    try:
        judged = _verdict(build_report(run))
    except Fp8DebugError as error:
        judged = f"<p>{_text(str(error))}</p>"
    names = [file.name for file in sql_files().values() if not file.is_internal and "macro" not in file.kind]
    views = "<details><summary>Views to ask</summary><p>" + ", ".join(f"<code>{name}</code>" for name in names)
    asking = "<p>For example <code>run.table(&quot;tensor_errors&quot;).df()</code>.</p></details>"
    return f"<div>{title}{_facts(facts)}{judged}{views}</p>{asking}</div>"


@html_of.register
def _report(report: Report) -> str:
    """The verdict, the findings, and the operands that should fall back to BF16."""
    path = f"<b>Report</b> <code>{_text(report.run.path)}</code>"
    more = _more(report.n_findings, min(len(report.findings), _MOST_FINDINGS), "finding")
    candidates = ""
    if report.candidates:
        shown = report.candidates[:_MOST_OPERANDS]
        table = _table(("layer", "tensor", "recipe", "steps", "why"), map(_candidate, shown))
        candidates = f"<p><b>Candidates for BF16</b></p>{table}{_more(report.n_candidates, len(shown), 'candidate')}"
    return f"<div>{path}{_facts(report.run)}{_verdict(report)}{more}{candidates}</div>"


@html_of.register
def _finding(finding: Finding) -> str:
    """What is wrong, where and since when, how it is known, and what to do."""
    return f"<div>{_headline(finding)}{_details(finding)}</div>"


@html_of.register
def _whatif(answer: WhatIf) -> str:
    """A row an operand and recipe, worst layers first, and what must be known to read them."""
    place = {layer: number for number, layer in enumerate(answer.layers)}
    operands = sorted(
        (entry for entry in answer.operands if entry.gemm is None), key=lambda e: place.get(e.layer or "", -1)
    )
    shown = operands[:_MOST_OPERANDS]
    columns = ("layer", "tensor", "recipe", "format", "SQNR, dB", "small values, dB", "underflow, %", "overflow, %")
    notes = "".join(f"<li>{_text(note.message)}</li>" for note in answer.notes)
    return (
        f"<div><b>What if</b> {', '.join(f'<code>{_text(recipe)}</code>' for recipe in answer.recipes)}"
        f"{_table(columns, map(_whatif_row, shown))}{_more(len(operands), len(shown), 'row')}"
        f"{f'<ul>{notes}</ul>' if notes else ''}</div>"
    )


@html_of.register
def _audit(audit: Audit) -> str:
    """How a checkpoint is read, and the findings."""
    title = f"<b>Checkpoint</b> <code>{_text(audit.path)}</code>"
    read = audit.convention
    how = f"{read.title}; {read.why}" if read.dialect is not None else "nothing in it is quantised"
    holds = f"{audit.n_tensors:,} tensors, {len(read.quantised):,} of them quantised: {how}"
    shown = audit.findings[:_MOST_FINDINGS]
    findings = "".join(
        f"<details><summary>{_check(finding)}</summary>{_check_places(finding)}"
        f"<p>What to do: {_text(finding.advice)}</p></details>"
        for finding in shown
    )
    said = "" if audit.findings else "<p><b>Nothing found that is wrong.</b></p>"
    return f"<div>{title}<p>{_text(holds)}</p>{said}{findings}{_more(len(audit.findings), len(shown), 'finding')}</div>"


def _check(finding: CheckFinding) -> str:
    colour = _COLOURS.get(finding.severity, "inherit")
    return (
        f'<b style="color:{colour}">{_text(finding.severity)}</b> <code>{_text(finding.check)}</code> '
        f"{_text(finding.message)}"
    )


def _check_places(finding: CheckFinding) -> str:
    others = finding.places[1:_MOST_PLACES]
    places = "".join(f"<li><code>{_text(one.tensor)}</code> {_text(one.brief or one.message)}</li>" for one in others)
    return (f"<ul>{places}</ul>" if places else "") + _more(len(finding.places) - 1, len(others), "place")


def _verdict(report: Report) -> str:
    findings = "".join(
        f"<details><summary>{_headline(finding)}</summary>{_details(finding)}</details>"
        for finding in report.findings[:_MOST_FINDINGS]
    )
    return f"<p><b>{_VERDICTS[report.verdict]}</b></p>{findings}"


def _facts(facts: RunFacts) -> str:
    steps = "no steps" if facts.first_step is None else f"steps {facts.first_step} to {facts.last_step}"
    words = (
        facts.status,
        f"{steps}, {facts.n_sampled_steps} sampled",
        f"{facts.n_layers_matched} of {facts.n_layers} layers recorded",
        f"recipes {', '.join(facts.recipes) or 'none'}",
    )
    return f"<p>{'; '.join(map(_text, words))}</p>"


def _headline(finding: Finding) -> str:
    colour = _COLOURS.get(finding.severity, "inherit")
    where = _where(finding.worst)
    return (
        f'<b style="color:{colour}">{_text(finding.severity)}</b> <code>{_text(finding.rule)}</code> '
        f"{f'<b>{_text(where)}</b>: ' if where else ''}{_text(finding.message)}"
    )


def _details(finding: Finding) -> str:
    rows = [(entry.title, entry.value, entry.healthy) for entry in finding.evidence]
    evidence = _table(("evidence", "here", "healthy"), rows) if rows else ""
    others = finding.places[1:_MOST_PLACES]
    places = "".join(f"<li>{_text(_where(place) + _under(place) + _since(place))}</li>" for place in others)
    also = f"<p>Also in:</p><ul>{places}</ul>" if places else ""
    n_left = len(finding.places) - 1 - len(others)
    needs = f"<p>To be sure, record {_text(finding.needs)}.</p>" if finding.needs else ""
    return (
        f"<p>{_text(_CONFIDENCES[finding.confidence])}{_text(_since(finding.worst))}</p>{evidence}"
        f"{also}{_more(n_left, 0, 'place')}"
        f"<p>What to do: {_text(finding.advice)}</p>{needs}"
    )


_CONFIDENCES = {
    "certain": "Certain: it can be read off what was recorded",
    "likely": "Likely: beyond what healthy trainings show",
    "not_enough_evidence": "Not enough evidence",
}


def _where(place: Place) -> str:
    named = (place.layer, place.tensor, place.gemm)
    parts = [word for word in named if word is not None]
    return " ".join(parts) + ("" if place.rank is None else f" (rank {place.rank})")


def _under(place: Place) -> str:
    return "" if place.recipe is None else f" under {place.recipe}"


def _since(place: Place) -> str:
    if place.first_step is None:
        return ""
    last = "" if place.last_step in (None, place.first_step) else f" to {place.last_step}"
    return f"; step{'s' if last else ''} {place.first_step}{last}"


def _candidate(suspect: Suspect) -> Sequence[str]:
    worst = suspect.worst
    return suspect.layer, suspect.tensor, worst.recipe, f"{worst.first_step} to {worst.last_step}", worst.reason


def _whatif_row(entry: OperandErrors) -> Sequence[str]:
    layer = "all" if entry.layer is None else entry.layer
    sqnr = "exact" if entry.exact else _number(entry.sqnr_db)
    shares = (_number(None if share is None else 100 * share, 3) for share in (entry.underflow, entry.overflow))
    return layer, entry.tensor, entry.recipe, entry.fmt, sqnr, _number(entry.sqnr_low_db), *shares


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _more(n: int, n_shown: int, word: str) -> str:
    n_left = n - n_shown
    return f"<p>… and {n_left} more {word}{'s' if n_left > 1 else ''}</p>" if n_left > 0 else ""


def _text(text: str) -> str:
    """As HTML, with characters that cannot be seen made visible."""
    return html.escape(escape(text))
