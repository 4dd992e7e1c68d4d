"""Tables of one operand: what recipes leave of it, how it went over the steps, its channels, its payload."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from fp8debug.analysis.operand import Channels, Course, Fit, Operand, Payload
from fp8debug.cli.render.sparkline import sparkline
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import chunks, columns, display_width, escape, named_columns, wrap
from fp8debug.cli.render.wording import METRICS, count, listed, step_range

_INDENT = "  "
_COURSE_WIDTH = 18
_KINDS = {"whatif": "what if", "blocks": "a scale a block", "framework": "framework's"}
_TITLES = {
    "amax": "largest magnitude",
    "scale_gap_bits": "scale gap, bits",
    "sqnr_db": "SQNR, dB",
    "sqnr_low_db": "SQNR of 99 %, dB",
    "underflow": "become zero, %",
    "overflow": "clipped, %",
    "gain": "gain",
}
_HEALTHY = {
    "gain": (1 - 1 / 9, 1 + 1 / 9),
    "scale_gap_bits": (-1.0, 1.0),
    "underflow": (0.0, 0.01),
    "overflow": (0.0, 0.001),
}
"""What the lowest and the highest block of a course stand for at least."""


def fit_lines(operand: Operand, looks: Looks) -> Iterator[str]:
    """Where each format begins and ends, and what is left of the values."""
    ranged = [fit for fit in operand.fits if fit.largest is not None]
    if ranged:
        yield looks.bold("RANGES, in the tensor's own unit")
        rows: list[tuple[str, ...]] = [
            ("recipe", "format", "scale", "smallest", "normal from", "largest", "coarse %", "beyond %")
        ]
        yield from _table([*rows, *map(_range_cells, ranged)], looks, n_left=2)
        yield from paragraph(
            "coarse: non-zero values below the normal range, where precision fades; beyond: elements above the largest "
            "value.",
            looks,
            looks.dim,
        )
        yield ""
    if operand.fits:
        yield looks.bold(f"WHAT IS LEFT at step {operand.step}")
        head = ("recipe", "format", "SQNR", "healthy", "99 %", "zero %", "clip %", "gain", "")
        rows = [head, *map(_left_cells, operand.fits)]
        painted = [looks.red if _is_bad(fit) else None for fit in operand.fits]
        yield from _table(rows, looks, n_left=2, n_right_of=len(head) - 1, painted=painted)
        yield from paragraph(
            "SQNR in dB, of all values and of the smallest 99 %; zero: non-zero values that become zero; clip: "
            "elements that round beyond the largest value.",
            looks,
            looks.dim,
        )


def _range_cells(fit: Fit) -> tuple[str, ...]:
    return (
        escape(fit.recipe), fit.fmt, short(fit.scale), short(fit.smallest_subnormal), short(fit.smallest_normal),
        short(fit.largest), _percent(fit.below), _percent(fit.above),
    )  # fmt: skip


def _left_cells(fit: Fit) -> tuple[str, ...]:
    sqnr = "exact" if fit.exact and fit.sqnr_db is None else _decibels(fit.sqnr_db)
    note = "; ".join(filter(None, (_KINDS.get(fit.source, ""), "beside it" if fit.alternate else "")))
    return (
        escape(fit.recipe), fit.fmt, sqnr, f"{fit.healthy_sqnr_db:.1f}", _decibels(fit.sqnr_low_db),
        _percent(fit.underflow), _percent(fit.overflow), "-" if fit.gain is None else f"{fit.gain:.3f}", note,
    )  # fmt: skip


def _is_bad(fit: Fit) -> bool:
    known = [value for value in (fit.sqnr_db, fit.sqnr_low_db) if value is not None]
    return bool(known) and min(known) < fit.floor_sqnr_db


def course_lines(operand: Operand, looks: Looks) -> Iterator[str]:
    """Each number at its first, its worst and its last step, and how it went."""
    shown = [course for course in operand.courses if _is_of(course, operand.recipe)]
    drawn = [course for course in shown if any(course.values) and not _is_own_scale(course)]
    if not drawn:
        return
    steps = [step for course in drawn for step in (course.steps[0], course.steps[-1])]
    yield looks.bold(f"HISTORY over {step_range(min(steps), max(steps))}")
    head = (f"under {escape(operand.recipe)}" if operand.recipe else "", "first", "worst", "at step", "last", "course")
    cells = [_course_cells(course, operand, looks) for course in drawn]
    yield from _table([head, *cells], looks, n_left=1, n_right_of=5)
    zero = [_TITLES[course.metric] for course in shown if not any(course.values) and course.metric != "scale_gap_bits"]
    if zero:
        yield from paragraph(f"Always 0: {listed(zero)}.", looks, looks.dim)
    start = max((course.judged_from or 0 for course in drawn), default=0)
    if start:
        yield from paragraph(
            f"Before step {start} the simulated history starts up: worst does not count it, and rules do not.",
            looks,
            looks.dim,
        )


def _is_of(course: Course, recipe: str | None) -> bool:
    return course.recipe is None or course.recipe == recipe


def _is_own_scale(course: Course) -> bool:
    return course.metric == "scale_gap_bits" and not any(course.values)


def _course_cells(course: Course, operand: Operand, looks: Looks) -> tuple[str, ...]:
    step, worst = course.worst
    first, last = course.values[0], course.values[-1]
    shown = _shown(course.metric)
    return _TITLES[course.metric], shown(first), shown(worst), str(step), shown(last), _line(course, operand, looks)


def _shown(metric: str) -> Callable[[float], str]:
    if metric == "amax":
        return short
    words = METRICS[metric]
    return lambda value: words.text(value).removesuffix(words.unit).strip()


def _line(course: Course, operand: Operand, looks: Looks) -> str:
    if len(course.values) < 2:
        return ""
    values: list[float | None] = list(course.values)
    if course.metric == "amax":  # over orders of magnitude
        values = [math.log2(value) if value > 0 else None for value in course.values]
    low, high = _limits(course, operand, [value for value in values if value is not None])
    pick = min if course.metric.startswith("sqnr") else _farthest if course.metric == "gain" else max
    return sparkline(values, low=low, high=high, width=_COURSE_WIDTH, worst=pick, ascii_only=looks.ascii_only)


def _limits(course: Course, operand: Operand, values: Sequence[float]) -> tuple[float, float]:
    """What the lowest and the highest block stand for: never less than what is healthy, so that noise stays low."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    if course.metric == "amax":
        return min(low, high - 1), high
    if course.metric.startswith("sqnr"):
        healthy = [fit.healthy_sqnr_db for fit in operand.fits if (fit.recipe, fit.fmt) == (course.recipe, course.fmt)]
        return 0.0, healthy[0] if healthy else high
    least_low, least_high = _HEALTHY[course.metric]
    return min(least_low, low), max(least_high, high)


def _farthest(values: Sequence[float]) -> float:
    return max(values, key=lambda value: abs(value - 1))


def channel_lines(operand: Operand, looks: Looks) -> Iterator[str]:
    """The worst channel of each axis, by magnitude and by SQNR."""
    known = [entry for entry in operand.channels if entry.worst_channel is not None and _is_telling(entry, operand)]
    if not known:
        return
    yield looks.bold("CHANNELS over the whole run")
    head = ("along", "measure", "worst", "channel", "at step", "worst 1 %", "median", "zero")
    yield from _table([head, *map(_channel_cells, known)], looks, n_left=2)


def _is_telling(entry: Channels, operand: Operand) -> bool:
    """Not under a recipe whose simulated history starts up: that would be the worst of the whole run."""
    if entry.measure == "amax":
        return True
    young = {course.recipe for course in operand.courses if course.judged_from}
    steady = [each.recipe for each in operand.channels if each.recipe and each.recipe not in young]
    recipe = operand.recipe if operand.recipe in steady else next(iter(steady), None)
    return entry.measure == "sqnr_db" and entry.recipe == recipe


def _channel_cells(entry: Channels) -> tuple[str, ...]:
    measure = "magnitude" if entry.measure == "amax" else f"dB, {escape(entry.recipe or '')}"
    shown = short if entry.measure == "amax" else _decibels
    values = (shown(entry.worst_value), str(entry.worst_channel), str(entry.worst_step))
    return entry.axis, measure, *values, shown(entry.worst_percentile), shown(entry.median), f"{entry.n_zero:,}"


def payload_lines(payload: Payload | None, looks: Looks) -> Iterator[str]:
    """What a GEMM read in low precision."""
    if payload is None:
        return
    yield looks.bold(f"WHAT THE GEMM READ at step {payload.step}")
    recipe = f", {escape(payload.recipe)}" if payload.recipe else ""
    if payload.scale is not None:
        scale = f"scale {short(payload.scale)}, scale_inv {short(payload.scale_inv)}"
    elif payload.scale_min is not None:
        scale = f"one scale a block, from {short(payload.scale_min)} to {short(payload.scale_max)}"
    else:
        scale = "its scale is not known"
    yield from paragraph(f"{count(payload.n, 'code')} in {payload.fmt or 'an unknown format'}{recipe}; {scale}.", looks)
    shares = [
        f"{_percent(value)} % {words}"
        for value, words in (
            (payload.saturated, "at the largest value or beyond"),
            (payload.subnormal, "subnormal"),
            (payload.zero, "zero"),
        )
        if value is not None
    ]
    yield from paragraph(f"Of the codes {listed(shares)}." if shares else "", looks)
    if payload.gain is not None:
        own = f" (our own cast at that scale: {payload.own_gain:.3f})" if payload.own_gain is not None else ""
        sqnr = "" if payload.sqnr_db is None else f"; SQNR {payload.sqnr_db:.1f} dB"
        yield from paragraph(f"Values come back times {payload.gain:.3f}{own}{sqnr}.", looks)
    if payload.is_stale:
        yield from paragraph("The bytes are old: the scale changed, they did not.", looks, looks.red)
    elif payload.differs:
        yield from paragraph("It is not what this scale should have given.", looks, looks.red)


def _table(
    rows: Sequence[Sequence[str]],
    looks: Looks,
    *,
    n_left: int,
    n_right_of: int | None = None,
    painted: Sequence[Callable[[str], str] | None] = (),
) -> Iterator[str]:
    """Columns: the first `n_left` and those from `n_right_of` on to the left, the others to the right."""
    n = len(rows[0])
    right = [n_left <= place < (n if n_right_of is None else n_right_of) for place in range(n)]
    lines = columns(rows, right=right)
    if max(map(display_width, lines)) > looks.width - len(_INDENT):
        lines = named_columns(rows, looks.width - len(_INDENT), right=right)
        painted = ()
    head, *body = lines
    yield from (_INDENT + looks.dim(piece) for piece in chunks(head, looks.width - len(_INDENT)))
    for place, line in enumerate(body):
        paint = (painted[place] if place < len(painted) else None) or str
        yield from (_INDENT + paint(piece) for piece in chunks(line, looks.width - len(_INDENT)))


def paragraph(text: str, looks: Looks, paint: Callable[[str], str] = str, *, hanging: str = "") -> Iterator[str]:
    """Wrapped; no line is wider than the stream, whatever names are in it."""
    yield from (paint(line) for line in wrap(text, looks.width, hanging=hanging, break_long=True))


def short(value: float | None) -> str:
    """Three significant digits."""
    return "-" if value is None else f"{value:.3g}"


def _decibels(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _percent(share: float | None) -> str:
    """As in the tables of a what-if: a small share is not 0."""
    if share is None:
        return "-"
    percent = 100 * share
    if percent == 0:
        return "0"
    return "<0.01" if percent < 0.005 else f"{percent:.2f}" if percent < 9.995 else f"{percent:.1f}"
