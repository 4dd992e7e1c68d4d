"""The report as JSON: the fields of the records under their own names, so that keys stay what they are."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fp8debug import __version__
from fp8debug.analysis.diagnosis import Finding
from fp8debug.analysis.report import REPORT_VERSION, Report
from fp8debug.cli.fail_on import Outcome
from fp8debug.cli.render.document import document_text


def report_json(report: Report, outcome: Outcome | None = None) -> str:
    """One JSON object and a newline.

    `report_version` rises when a key changes its meaning or goes; new keys may appear without. What is unknown, NaN or
    infinite is null. `fail_on` is null unless a condition was given. Only a run of several ranks has `ranks`, only an
    imported one `given`. Findings come first.
    """
    fields = asdict(report)
    del fields["findings"]
    for name in ("ranks", "given"):
        if fields[name] is None:
            del fields[name]
    first = {key: fields.pop(key) for key in ("verdict", "n_findings", "n_errors", "n_warnings")}
    document = {
        "report_version": REPORT_VERSION,
        "fp8debug_version": __version__,
        **first,
        "findings": [_finding(finding) for finding in report.findings],
        **fields,
        "fail_on": None if outcome is None else asdict(outcome),
    }
    return document_text(document)


def _finding(finding: Finding) -> dict[str, Any]:
    steps = {"first_step": finding.first_step, "last_step": finding.last_step, "n_places": len(finding.places)}
    fields = asdict(finding)
    return {**fields, **steps, "places": fields["places"]}
