"""One self-contained page: what is said stands in it as text, what is drawn as data beside the scripts that draw it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fp8debug import __version__
from fp8debug.analysis.page.columns import merge_columns
from fp8debug.analysis.page.metrics import metrics_of
from fp8debug.analysis.page.records import Metric, PageRun
from fp8debug.analysis.thresholds import resolve
from fp8debug.cli.render.html.assets import scripts, source_hash, styles
from fp8debug.cli.render.html.container import DETAILS, Detail
from fp8debug.cli.render.html.data import Drawing, PageData, drawing
from fp8debug.cli.render.html.elements import Markup, element, items, joined, text
from fp8debug.cli.render.html.facts import notes_body
from fp8debug.cli.render.wording import listed

MOST_BYTES = 2_000_000
GENERATOR = "fp8debug"
"""What the meta tag `generator` of every page begins with."""

_FOOT = f"Made by fp8debug {__version__}. Nothing on this page is loaded from elsewhere."


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page; one without a body is left out."""

    id: str
    title: str
    body: Markup


@dataclass(frozen=True, slots=True)
class Document:
    """A page before it is written."""

    title: str
    head: Markup
    """What stands above the contents: the heading and the verdict."""
    sections: Sequence[Section]
    notes: Sequence[str]
    """What was left out."""
    data: PageData | None
    """What is drawn; None: nothing is, and the page has no script."""


def mount(id_: str, words: str) -> Markup:
    """A place that the script of the page fills; `words` say how to read what it draws."""
    lost = element("noscript", element("p", text("This part is drawn by a script, and scripts are switched off here.")))
    return joined([element("p", text(words), id=f"{id_}-help"), element("div", lost, id=id_)])


def write(document: Document) -> str:
    """The page as text, under `MOST_BYTES` where coarser values and wider columns can achieve that."""
    data, n_merged = document.data, 1
    if data is None:
        return _page(document, None, ())
    for detail in DETAILS:
        page = _drawn_page(document, data, detail, n_merged)
        if len(page.encode()) <= MOST_BYTES:
            return page
    while len(page.encode()) > MOST_BYTES and max((run.first_steps.size for run in data.runs), default=0) > 1:
        n_merged *= 2
        data = _merged(data)
        page = _drawn_page(document, data, DETAILS[-1], n_merged)
    return page


def _merged(data: PageData) -> PageData:
    """The same in half the columns; what followed from other values before may be a metric of its own now."""
    runs = tuple(merge_columns(run, 2) for run in data.runs)
    known = {metric.name for metric in data.metrics}
    new = [plane for run in runs for plane in run.planes if plane.metric not in known]
    return replace(data, runs=runs, metrics=(*data.metrics, *metrics_of(new, resolve())))


def _drawn_page(document: Document, data: PageData, detail: Detail, n_merged: int) -> str:
    drawn = drawing(data, detail)
    return _page(document, drawn.text, (*run_notes(data.runs), *_how_stored(data, drawn, n_merged)))


def run_notes(runs: Sequence[PageRun]) -> Iterator[str]:
    """What the runs say was left out, with their names where there are several."""
    for note in dict.fromkeys(note for run in runs for note in run.notes):
        names = [run.name for run in runs if note in run.notes]
        yield note if len(names) == len(runs) else f"{listed(names)}: {note}"


def _how_stored(data: PageData, drawn: Drawing, n_merged: int) -> Iterator[str]:
    if n_merged > 1:
        yield f"Columns of steps are wider than they need be for a reader, to keep the page below {MOST_BYTES:,} bytes"
    steps = [
        f"{metric.title} {_resolution(metric, drawn.units[metric.name])}"
        for metric in data.metrics
        if metric.name in drawn.units
    ]
    if steps:
        yield f"Values that are drawn are rounded to steps of: {', '.join(steps)}"


def _resolution(metric: Metric, step: float) -> str:
    if metric.is_log2:
        return f"{100 * (2**step - 1):.2g} % of the value"
    if metric.unit == "share":
        return f"{_plain(100 * step)} %"
    return f"{_plain(step)} {metric.unit}".rstrip()


def _plain(value: float) -> str:
    """Two digits, never with an exponent."""
    return np.format_float_positional(value, precision=2, fractional=False, trim="-")


def _page(document: Document, drawn: str | None, stored: Sequence[str]) -> str:
    notes = Section("notes", "What was left out or rounded", notes_body([*document.notes, *stored]))
    sections = [section for section in (*document.sections, notes) if section.body]
    script, style = "" if drawn is None else scripts(), styles()
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"{GENERATOR} {__version__}"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", text(document.title)),
        element("link", rel="icon", href="data:,"),
        Markup(f"<style>\n{style}\n</style>"),
    )
    body = element(
        "body",
        element("a", text("Skip to the content"), href="#main", class_="skip"),
        element("header", document.head),
        _contents(sections),
        element("main", *map(_section, sections), id="main"),
        element("footer", element("p", text(_FOOT))),
        Markup("" if drawn is None else f'<script type="text/plain" id="fp8debug-data">{drawn}</script>'),
        Markup(f"<script>{script}</script>" if script else ""),
    )  # fmt: skip
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _policy(script: str) -> str:
    """Nothing from anywhere; of scripts ours alone, so that none can come in by a name that a run holds."""
    allowed = source_hash(script) if script else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _contents(sections: Sequence[Section]) -> Markup:
    links = (element("a", text(section.title), href=f"#{section.id}") for section in sections)
    return element("nav", items(links), class_="contents", aria_label="On this page")


def _section(section: Section) -> Markup:
    title = f"{section.id}-title"
    heading = element("h2", text(section.title), id=title)
    return element("section", heading, section.body, id=section.id, aria_labelledby=title)
