"""A checkpoint against a reference, as text: the tensors that differ, and what explains it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from fp8debug.analysis.checkpoint import ComparedTensor, Comparison
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import escape, named_columns, wrap
from fp8debug.cli.render.wording import count, listed, with_full_stop

_HEAD = ("tensor", "SQNR dB", "healthy", "gain", "block gain", "verdict")
_RIGHT = (False, True, True, True, True, False)


def comparison_lines(comparison: Comparison, looks: Looks, top: int) -> Iterator[str]:
    """One reference: how many agree, the worst tensors, what explains them."""
    yield looks.bold(f"AGAINST {escape(comparison.reference)}")
    verdicts = Counter(one.verdict for one in comparison.tensors)
    counted = listed([f"{n:,} {verdict}" for verdict, n in verdicts.most_common()]) or "no tensor in common"
    yield from wrap(f"{count(len(comparison.tensors), 'tensor')} compared: {counted}.", looks.width)
    for note in comparison.notes:
        yield from wrap(with_full_stop(escape(note)), looks.width)
    for names, words in ((comparison.missing, "not in the reference"), (comparison.extra, "only in the reference")):
        if names:
            shown = ", ".join(map(escape, names[:3])) + (" ..." if len(names) > 3 else "")
            yield from wrap(f"{count(len(names), 'tensor')} {words}: {shown}.", looks.width)
    worst = sorted(comparison.tensors, key=_badness)[:top]
    if worst:
        yield ""
        rows = [_HEAD, *map(_row, worst)]
        yield from ("  " + line for line in named_columns(rows, looks.width - 2, right=_RIGHT))
    for one in worst:
        for hypothesis in one.hypotheses[:2]:
            text = f"{one.name}: {hypothesis.message} (explains {100 * hypothesis.explains:.0f} % of the error)"
            yield from wrap(with_full_stop(escape(text)), looks.width, indent="  - ")


def _badness(one: ComparedTensor) -> tuple[bool, float]:
    lost = 0.0 if one.sqnr_db is None or one.healthy_sqnr_db is None else one.healthy_sqnr_db - one.sqnr_db
    return one.verdict != "different", -lost


def _row(one: ComparedTensor) -> tuple[str, ...]:
    low, high = one.block_gain_min, one.block_gain_max
    return (
        escape(one.name),
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
