"""The page of a checkpoint: the verdict, what is wrong, how it is read, and how it compares."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from fp8debug.analysis.checkpoint import Audit, CheckFinding, ComparedTensor, Comparison, ThreeWay
from fp8debug.cli.render.checkpoint import CHECKS_PAGE, entry, head_facts, verdict
from fp8debug.cli.render.checkpoint_comparison import (
    HEAD,
    THREE_WAY_HEAD,
    comparison_sentences,
    explained,
    link_row,
    row,
    worst_first,
)
from fp8debug.cli.render.html.document import Document, Section, write
from fp8debug.cli.render.html.dots import Dot, dots
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
from fp8debug.cli.render.wording import with_full_stop
from fp8debug.errors import escape


def checkpoint_html(audit: Audit, *, top: int) -> str:
    """The whole page, ending in a newline."""
    name = PurePath(audit.path).name or audit.path
    sections = [
        Section("findings", "What is wrong, and what is good to know", _findings(audit, top)),
        Section("reading", "How it is read", _reading(audit)),
        *(
            Section(f"against-{n}", f"Against {one.reference}", _comparison(one, top))
            for n, one in enumerate(audit.comparisons, 1)
        ),
        Section("all", "All against each other", _three_way(audit.three_way)),
        Section("scales", "Scales", _scales(audit)),
        Section(
            "problems",
            "What could not be read, or was left out",
            items(text(with_full_stop(one)) for one in audit.problems),
        ),
    ]
    word = "findings" if audit.n_errors else "none"
    head = joined(
        [
            element("h1", text(f"Checkpoint {name}")),
            element("p", element("strong", text(verdict(audit))), class_=f"verdict {word}"),
        ]
    )
    return write(Document(f"{escape(name)} - fp8debug", head, sections, (), None))


def _findings(audit: Audit, top: int) -> Markup:
    return joined(_finding(place, finding, top) for place, finding in enumerate(audit.findings, 1))


def _finding(place: int, finding: CheckFinding, top: int) -> Markup:
    heading = element(
        "h3",
        element("span", text(finding.severity), class_="severity"),
        element("span", text(": "), class_="hidden"),
        text(with_full_stop(finding.title)),
    )
    worst = element("p", text(with_full_stop(finding.places[0].message)))
    others = [text(with_full_stop(entry(one))) for one in finding.places[1:top]]
    left = len(finding.places) - top
    facts = [
        ("also", items(others)),
        ("and", prose(f"{left:,} more: `--top N` shows more.") if left > 0 else NOTHING),
        ("do", text(finding.advice)),
        ("more", element("code", text(f"{CHECKS_PAGE}#{finding.check}"))),
    ]
    return element("article", heading, worst, terms(facts), class_=f"finding {finding.severity}", id=f"finding-{place}")


def _reading(audit: Audit) -> Markup:
    return terms([(label, text(words)) for label, words in head_facts(audit)], class_="facts")


def _comparison(comparison: Comparison, top: int) -> Markup:
    worst = worst_first(comparison, top)
    rows = [[row_head(text(name)), *map(number, cells), cell(text(said))] for name, *cells, said in map(row, worst)]
    heads = [column(words, is_number=0 < at < len(HEAD) - 1) for at, words in enumerate(HEAD)]
    return joined(
        [
            *(element("p", text(sentence)) for sentence in comparison_sentences(comparison)),
            _quality(comparison.tensors),
            table("The worst tensors", heads, rows) if rows else NOTHING,
            items(text(sentence) for sentence in explained(worst)),
        ]
    )


def _three_way(found: ThreeWay | None) -> Markup:
    if found is None:
        return NOTHING
    rows = [[row_head(text(name)), cell(text(other)), *map(number, cells)]
            for name, other, *cells in map(link_row, found.links)]  # fmt: skip
    heads = [column(words, is_number=at > 1) for at, words in enumerate(THREE_WAY_HEAD)]
    return joined([element("p", text(found.verdict)), table("All against each other", heads, rows)])


def _quality(tensors: Sequence[ComparedTensor]) -> Markup:
    """SQNR and gain of each tensor."""
    noise = [
        Dot(one.name, one.sqnr_db, one.sqnr_db, one.sqnr_db, one.verdict == "different")
        for one in tensors
        if one.sqnr_db is not None
    ]
    gains = [dot for one in tensors if (dot := _gain(one)) is not None]
    healthy = [one.healthy_sqnr_db for one in tensors if one.healthy_sqnr_db is not None]
    return joined(
        [
            dots("SQNR against the reference", "dB", noise, healthy=max(healthy, default=None)),
            dots("Gain, from the lowest to the highest block", "log2: 0 is right", gains, healthy=0.0),
        ]
    )


def _gain(one: ComparedTensor) -> Dot | None:
    """As an exponent of two; a tensor whose sign is lost has none."""
    numbers = [one.gain, one.block_gain_min, one.block_gain_max]
    known = [math.log2(number) for number in numbers if number is not None and number > 0]
    if not known or len(known) < sum(number is not None for number in numbers):
        return None
    return Dot(one.name, known[0], min(known), max(known), one.verdict == "different")


def _scales(audit: Audit) -> Markup:
    """The scale of each quantised tensor, as an exponent of two."""
    return dots("Scale, the median and the range of its blocks", "log2", list(_scale_dots(audit)))


def _scale_dots(audit: Audit) -> Iterator[Dot]:
    for one in audit.convention.quantised:
        scale = one.grid_scale
        facts = None if scale is None else audit.facts.scales.get(scale.name)
        if scale is None or facts is None or not facts.median or not facts.smallest or not facts.largest:
            continue
        if min(facts.smallest, facts.median, facts.largest) > 0:
            yield Dot(scale.name, math.log2(facts.median), math.log2(facts.smallest), math.log2(facts.largest))
