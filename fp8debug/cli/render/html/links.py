"""Addresses within a page: a cell of its heatmap, named by layer, tensor, step and metric."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from fp8debug.analysis.diagnosis import Finding, Place
from fp8debug.analysis.page.records import PageRun
from fp8debug.analysis.report import Report
from fp8debug.cli.render.findings import IN_FULL
from fp8debug.cli.render.html.elements import Markup, element, text
from fp8debug.errors import escape

_METRICS = {  # what shows a rule's cause best, of what there may be on a page
    "clipping": ("overflow", "scale_gap_bits"),
    "clipping_spike": ("overflow", "scale_gap_bits"),
    "degenerate_scale": ("scale_gap_bits",),
    "format_choice": ("sqnr_db",),
    "frozen_scale": ("scale_gap_bits", "amax"),
    "gain_off": ("sqnr_db",),
    "history_inf": ("amax",),
    "nonfinite": ("amax",),
    "outlier_growing": ("amax",),
    "sqnr_low": ("sqnr_db", "sqnr_low_db"),
    "stale_scale": ("scale_gap_bits", "amax"),
    "underflow": ("underflow",),
}
MOST_LINKS = 2_000


@dataclass(frozen=True, slots=True)
class Cells:
    """What can be linked to on a page."""

    layers: frozenset[str]
    metrics: frozenset[str]

    @classmethod
    def of(cls, runs: Iterable[PageRun], metrics: Iterable[str]) -> Cells:
        """Everything that the runs show."""
        return cls(frozenset(layer for run in runs for layer in run.layers), frozenset(metrics))

    def link(self, layer: str | None, tensor: str | None, step: int | None = None, metric: str | None = None) -> Markup:
        """The name of an operand, as a link where the page shows its layer."""
        words = text(" ".join(filter(None, (layer, tensor))))
        if layer is None or layer not in self.layers:
            return words
        return element("a", words, href=address(layer, tensor, step, metric))

    def place(self, place: Place, rule: str) -> Markup:
        """The same of a place of a finding."""
        return self.link(place.layer, place.tensor, place.first_step, self.metric_of(rule))

    def metric_of(self, rule: str) -> str | None:
        """The metric that shows the rule's cause; None: any."""
        return next((name for name in _METRICS.get(rule, ()) if name in self.metrics), None)


def address(layer: str, tensor: str | None = None, step: int | None = None, metric: str | None = None) -> str:
    """`#layer=blocks.0.fc1&tensor=x&step=12&metric=underflow`; names as the page shows them."""
    parts = {"layer": escape(layer), "tensor": tensor and escape(tensor), "step": step, "metric": metric}
    return "#" + "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parts.items() if value is not None)


def links_of(report: Report, cells: Cells) -> list[dict[str, object]]:
    """Cells that the report is about, for the script of the page, which begins at the first.

    Findings that are errors or warnings, then candidates and the watch list, then what is only to know.
    """
    numbered = list(enumerate(report.findings, 1))
    suspects: list[dict[str, object]] = [
        {"finding": None, "layer": escape(one.layer), "tensor": one.tensor, "step": one.worst.first_step}
        for one in (*report.candidates, *report.watch)
        if one.layer in cells.layers
    ]
    found = [
        *(link for each in numbered if each[1].severity in IN_FULL for link in _of_finding(*each, cells)),
        *suspects,
        *(link for each in numbered if each[1].severity not in IN_FULL for link in _of_finding(*each, cells)),
    ]
    return found[:MOST_LINKS]


def _of_finding(number: int, finding: Finding, cells: Cells) -> Iterator[dict[str, object]]:
    for place in finding.places:
        if place.layer is not None and place.layer in cells.layers:
            yield {"finding": number, "layer": escape(place.layer), "tensor": place.tensor, "step": place.first_step}
