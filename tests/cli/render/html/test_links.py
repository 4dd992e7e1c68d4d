"""Where the page of a run begins."""

from __future__ import annotations

from types import SimpleNamespace as Of
from typing import Any

from fp8debug.cli.render.html.links import Cells, links_of

CELLS = Cells(frozenset("abcd"), frozenset())


def finding(severity: str, *layers: str) -> Any:
    return Of(severity=severity, places=[Of(layer=layer, tensor="x", first_step=3) for layer in layers])


def suspect(layer: str) -> Any:
    return Of(layer=layer, tensor="w", worst=Of(first_step=5))


def test_a_page_begins_at_what_is_serious() -> None:
    note, warning = finding("note", "a"), finding("warning", "gone", "b")
    report: Any = Of(findings=[note, warning], candidates=[suspect("c")], watch=[suspect("d"), suspect("gone")])
    assert [(link["finding"], link["layer"], link["step"]) for link in links_of(report, CELLS)] == [
        (2, "b", 3), (None, "c", 5), (None, "d", 5), (1, "a", 3),
    ]  # fmt: skip
    report.findings = [note]
    assert links_of(report, CELLS)[0] == {"finding": None, "layer": "c", "tensor": "w", "step": 5}
