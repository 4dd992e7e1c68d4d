"""A checkpoint against a reference, as text: the tensors that differ, and what explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from fp8debug.analysis.checkpoint import ComparedTensor, Comparison, Link, ThreeWay
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, escape, named_columns, wrap
from fp8debug.cli.render.wording import count, listed, with_full_stop
from fp8debug.errors import some

HEAD = ("tensor", "SQNR dB", "healthy", "gain", "block gain", "verdict")
"""Columns of the table of tensors."""
_RIGHT = (False, True, True, True, True, False)
_MOST_HYPOTHESES = 2
_FEW = 5


def comparison_lines(comparison: Comparison, looks: Looks, top: int) -> Iterator[str]:
    """One reference: how many agree, the worst tensors, what explains them."""
    yield looks.bold(f"AGAINST {escape(comparison.reference)}")
    for sentence in comparison_sentences(comparison):
        yield from wrap(escape(sentence), looks.width)
    worst = worst_first(comparison, top)
    if worst:
        yield ""
        rows = [HEAD, *([escape(name), *cells] for name, *cells in map(row, worst))]
        yield from ("  " + line for line in named_columns(rows, looks.width - 2, right=_RIGHT))
    for sentence in explained(worst):
        yield from wrap(escape(sentence), looks.width, indent="  - ")


def comparison_sentences(comparison: Comparison) -> Iterator[str]:
    """How many tensors there are of each verdict, what was noted, what has no counterpart."""
    verdicts = Counter(one.verdict for one in comparison.tensors)
    counted = listed([f"{n:,} {verdict}" for verdict, n in verdicts.most_common()]) or "none in common"
    yield f"{count(len(comparison.tensors), 'tensor')} compared: {counted}."
    yield from map(with_full_stop, comparison.notes)
    for names, words in ((comparison.missing, "not in the reference"), (comparison.extra, "only in the reference")):
        if names and comparison.kind != "reference":  # notes of references tell it
            yield f"{count(len(names), 'tensor')} {words}: {some(names)}."


def worst_first(comparison: Comparison, top: int) -> list[ComparedTensor]:
    """Tensors that differ, at most `top`; where none does, the few that lost most."""
    ranked = sorted(comparison.tensors, key=_badness)
    different = [one for one in ranked if one.verdict == "different"]
    return different[:top] if different else ranked[: min(top, _FEW)]


def explained(tensors: Sequence[ComparedTensor]) -> Iterator[str]:
    """What else may explain the tensors that differ; the best explanation is told by the finding."""
    for one in tensors:
        for hypothesis in one.hypotheses[1:_MOST_HYPOTHESES]:
            share = f" (explains {100 * hypothesis.explains:.0f} % of the error)" if hypothesis.explains else ""
            yield with_full_stop(f"{one.name}, second to the best explanation: {hypothesis.message}{share}")


THREE_WAY_HEAD = ("this one", "against", "tensors", "equal", "one rounding", "two", "different", "SQNR dB")
"""Columns of the table of several checkpoints."""


def three_way_lines(found: ThreeWay, looks: Looks) -> Iterator[str]:
    """Several checkpoints, every two held against each other."""
    yield looks.bold("ALL AGAINST EACH OTHER, earlier ones first")
    yield from wrap(escape(found.verdict), looks.width)
    yield ""
    rows = [THREE_WAY_HEAD, *map(link_row, found.links)]
    right = (False, False, *(True,) * (len(THREE_WAY_HEAD) - 2))
    short = [[escape(PurePath(name).name or name) for name in row[:2]] + list(row[2:]) for row in rows]
    yield from ("  " + line for line in columns(short, right=right))


def link_row(link: Link) -> tuple[str, ...]:
    """Its cells under `THREE_WAY_HEAD`."""
    counts = (link.n, link.n_equal, link.n_faithful, link.n_requantised, link.n_different)
    return link.name, link.reference, *(f"{n:,}" for n in counts), _number(link.sqnr_db_median, 1)


def _badness(one: ComparedTensor) -> tuple[bool, bool, float]:
    known = one.sqnr_db is not None and one.healthy_sqnr_db is not None
    lost = (one.healthy_sqnr_db or 0.0) - (one.sqnr_db or 0.0) if known else 0.0
    return one.verdict != "different", one.verdict in ("identical", "recoded"), -lost


def row(one: ComparedTensor) -> tuple[str, ...]:
    """Its cells under `HEAD`."""
    low, high = one.block_gain_min, one.block_gain_max
    return (
        one.name,
        _number(one.sqnr_db, 1),
        _number(one.healthy_sqnr_db, 1),
        _number(one.gain, 4),
        "-" if low is None or high is None else f"{low:.4g} to {high:.4g}",
        one.verdict,
    )


def _number(value: float | None, digits: int) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.3g}"
