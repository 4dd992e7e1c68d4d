"""A checkpoint against a reference, as text: the tensors that differ, and what explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from fp8debug.analysis.checkpoint import ComparedTensor, Comparison
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, named_columns, wrap
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
        if names:
            yield f"{count(len(names), 'tensor')} {words}: {some(names)}."


def worst_first(comparison: Comparison, top: int) -> list[ComparedTensor]:
    """Tensors that differ, at most `top`; where none does, the few that lost most."""
    ranked = sorted(comparison.tensors, key=_badness)
    different = [one for one in ranked if one.verdict == "different"]
    return different[:top] if different else ranked[: min(top, _FEW)]


def explained(tensors: Sequence[ComparedTensor]) -> Iterator[str]:
    """What explains the tensors that differ, best first."""
    for one in tensors:
        for hypothesis in one.hypotheses[:_MOST_HYPOTHESES]:
            share = f" (explains {100 * hypothesis.explains:.0f} % of the error)" if hypothesis.explains else ""
            yield with_full_stop(f"{one.name}: {hypothesis.message}{share}")


def _badness(one: ComparedTensor) -> tuple[bool, float]:
    lost = 0.0 if one.sqnr_db is None or one.healthy_sqnr_db is None else one.healthy_sqnr_db - one.sqnr_db
    return one.verdict != "different", -lost


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
