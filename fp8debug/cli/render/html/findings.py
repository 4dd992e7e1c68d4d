"""What is wrong: the first section of a page."""

from __future__ import annotations

from collections.abc import Sequence

from fp8debug.analysis.diagnosis import Evidence, Finding
from fp8debug.analysis.remedies import Remedy
from fp8debug.analysis.report import Report
from fp8debug.cli.render.findings import IN_FULL, findings_counted, how_sure, rules_in_force, what_was_asked
from fp8debug.cli.render.html.elements import (
    NOTHING,
    Markup,
    cell,
    column,
    element,
    items,
    joined,
    number,
    prose,
    row_head,
    table,
    terms,
    text,
)
from fp8debug.cli.render.html.links import Cells
from fp8debug.cli.render.missing import what_is_missing
from fp8debug.cli.render.remedies import remedy_text
from fp8debug.cli.render.where import since, where
from fp8debug.cli.render.wording import count, with_full_stop

_MOST_PLACES = 12


def findings_body(report: Report, cells: Cells) -> Markup:
    """The section, or what is said where nothing was found."""
    numbered = list(enumerate(report.findings, 1))
    return joined(
        [
            element("p", text(f"{findings_counted(report)}, worst first.")) if report.n_findings > 1 else NOTHING,
            NOTHING if report.n_findings else element("p", text(what_was_asked(report))),
            element("p", prose(what_is_missing(report))) if report.verdict == "not_enough_evidence" else NOTHING,
            *(element("p", text(words), class_="note") for words in rules_in_force(report)),
            *(_in_full(n, finding, report.remedies, cells) for n, finding in numbered if finding.severity in IN_FULL),
            *(_in_short(n, finding, cells) for n, finding in numbered if finding.severity not in IN_FULL),
            _and_more(report.n_findings - len(report.findings)),
        ]
    )


def _in_full(place: int, finding: Finding, remedies: Sequence[Remedy], cells: Cells) -> Markup:
    facts = [
        ("where", text(where(finding))),
        ("show", _places(finding, cells)),
        ("since", text(since(finding))),
        ("evidence", _evidence(finding.evidence)),
        ("sure", prose(how_sure(finding))),
        ("do", prose(finding.advice)),
        ("remedy", prose(remedy_text(finding, remedies))),
        ("more", _more(finding)),
    ]
    return _article(place, finding, terms(facts))


def _in_short(place: int, finding: Finding, cells: Cells) -> Markup:
    facts = [
        ("where", text(where(finding))),
        ("show", _places(finding, cells)),
        ("since", text(since(finding))),
        ("to know", prose(finding.needs or "")),
        ("more", _more(finding)),
    ]
    return _article(place, finding, terms(facts))


def _article(place: int, finding: Finding, facts: Markup) -> Markup:
    heading = element(
        "h3",
        element("span", text(finding.severity), class_="severity"),
        element("span", text(": "), class_="hidden"),
        prose(with_full_stop(finding.message)),
    )
    return element("article", heading, facts, class_=f"finding {finding.severity}", id=f"finding-{place}")


def _places(finding: Finding, cells: Cells) -> Markup:
    """Links to the heatmap, one an operand."""
    by_operand = {(place.layer, place.tensor): place for place in reversed(finding.places) if place.layer}
    places = [place for place in reversed(by_operand.values()) if place.layer in cells.layers]
    shown = [cells.place(place, finding.rule) for place in places[:_MOST_PLACES]]
    left = len(places) - len(shown)
    return joined([*shown, text(f"{left:,} more")] if left else shown, ", ")


def _evidence(evidence: Sequence[Evidence]) -> Markup:
    if not evidence:
        return NOTHING
    rows = [(row_head(text(entry.title)), number(entry.value), cell(text(entry.healthy))) for entry in evidence]
    return table("Evidence", [column("worst place"), column("here", is_number=True), column("healthy")], rows)


def _more(finding: Finding) -> Markup:
    known = [element("code", text(f"fp8debug rules {finding.rule}"))]
    return joined([*known, element("code", text(finding.page))] if finding.page else known, ", ")


def _and_more(left: int) -> Markup:
    return element("p", prose(f"... and {count(left, 'finding')} more: `--top N` shows more.")) if left else NOTHING


def isolated_body(report: Report) -> Markup:
    """Steps at which operands hit once."""
    if not report.n_isolated_hits:
        return NOTHING
    left = report.n_isolated_hits - len(report.isolated_hits)
    more = f"... and {count(left, 'step')} more: `select * from isolated_hits`."
    return joined(
        [
            element("p", text(f"In {count(report.n_isolated_hits, 'step')}: too few to make a candidate.")),
            items(text(hit.message) for hit in report.isolated_hits),
            element("p", prose(more)) if left else NOTHING,
        ]
    )
