"""One candidate, or one entry of the watch list, as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from fp8debug.analysis.course import metric_that_hurts
from fp8debug.analysis.suspects import Series, Suspect, Verdict
from fp8debug.analysis.thresholds import of_format
from fp8debug.cli.render.sparkline import sparkline
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import chunks, columns, display_width, escape, named_columns, wrap
from fp8debug.cli.render.wording import METRICS, listed, operand, step_range, with_full_stop

_INDENT = " " * 3
_TITLE_WIDTH = 36  # of a table of which the rest is as wide
_NUMBER = re.compile(r"[-+\d.]+")
_IN_SHORT = {"underflow": "become zero", "overflow": "clipped", "scale_gap_bits": "too much scale"}


def candidate_lines(place: int, suspect: Suspect, thresholds: Mapping[str, float], looks: Looks) -> Iterator[str]:
    """Heading, reason, what each recipe says, the evidence beside the healthy values, the course over the steps."""
    feeds = f"feeds {listed(suspect.gemms)}" if suspect.gemms else ""
    yield from _heading(place, suspect, feeds, looks)
    yield from _reasons(suspect.verdicts, looks)
    yield from _recipes(suspect.verdicts, looks)
    yield from _way_out(suspect, looks)
    yield from _evidence(suspect.worst, thresholds, looks)
    yield from _course(suspect.series, suspect.worst, looks)


def watch_lines(place: int, suspect: Suspect, looks: Looks) -> Iterator[str]:
    """The short form: heading, reason, course."""
    worst = suspect.worst
    yield from _heading(place, suspect, "", looks)
    yield from _reason(worst, looks)
    others = [verdict.recipe for verdict in suspect.verdicts[1:]]
    if others:
        yield from wrap(f"Also under {listed(others)}.", looks.width, indent=_INDENT)
    yield from _course(suspect.series, worst, looks)


def _heading(place: int, suspect: Suspect, note: str, looks: Looks) -> Iterator[str]:
    """`3. blocks.1.fc1 x  feeds fprop and wgrad      28.5 dB lost`; a long name goes over several lines, whole."""
    number = f"{place}."
    name, loss = operand(suspect.layer, suspect.tensor), loss_text(suspect.worst)
    left = f"{number:<{len(_INDENT)}}{name}" + (f"  {note}" if note else "")
    blanks = looks.width - display_width(left) - len(loss)
    if blanks >= 2:
        styled = f"{number:<{len(_INDENT)}}{looks.bold(name)}" + (f"  {looks.dim(note)}" if note else "")
        yield styled + (" " * blanks + looks.bold(loss) if loss else "")
        return
    first, *rest = chunks(escape(suspect.layer), looks.width - len(_INDENT))
    yield f"{number:<{len(_INDENT)}}{looks.bold(first)}"
    yield from (_INDENT + looks.bold(piece) for piece in rest)
    yield _INDENT + "  ".join(filter(None, (escape(suspect.tensor), note, loss)))


def loss_text(verdict: Verdict) -> str:
    """How bad it is, in the one number that says it."""
    metric = metric_that_hurts(verdict)
    value = {
        "underflow": verdict.underflow,
        "overflow": verdict.overflow,
        "scale_gap_bits": verdict.scale_gap_bits,
    }.get(metric)
    if value is not None:
        return f"{METRICS[metric].text(value)} {_IN_SHORT[metric]}"
    return "" if verdict.db_lost is None else f"{verdict.db_lost:.1f} dB lost"


def _reasons(verdicts: Sequence[Verdict], looks: Looks) -> Iterator[str]:
    """The worst verdict's reason, and those of other recipes that tell another story."""
    told: set[str] = set()
    for verdict in verdicts:
        story = _NUMBER.sub("", verdict.reason.partition(";")[0])
        if story not in told:
            yield from _reason(verdict, looks)
        told.add(story)


def _reason(verdict: Verdict, looks: Looks) -> list[str]:
    steps = step_range(verdict.first_step, verdict.last_step)
    text = f"Under {verdict.recipe} ({verdict.fmt}), {steps}: {verdict.reason}"
    return wrap(with_full_stop(escape(text)), looks.width, indent=_INDENT)


def _recipes(verdicts: Sequence[Verdict], looks: Looks) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("recipe", "format", "steps", "sampled steps that hit", "steps with a gap", "dB lost", "")
    ]
    rows += [
        (
            escape(verdict.recipe),
            escape(verdict.fmt),
            f"{verdict.first_step}-{verdict.last_step}",
            f"{verdict.n_hit_steps} of {verdict.n_observed_steps}",
            f"{verdict.n_gap_hit_steps} of {verdict.n_gap_steps}" if verdict.n_gap_hit_steps else "",
            "-" if verdict.db_lost is None else f"{verdict.db_lost:.1f}",
            "watch only" if verdict.level == "watch" else "",
        )
        for verdict in verdicts
    ]
    if not any(row[4] for row in rows[1:]):
        rows = [(*row[:4], *row[5:]) for row in rows]
    head, *body = named_columns(
        rows, looks.width - len(_INDENT), right=(False, False, False, *[True] * (len(rows[0]) - 4))
    )
    yield _INDENT + looks.dim(head)
    yield from (_INDENT + line for line in body)


def _way_out(suspect: Suspect, looks: Looks) -> list[str]:
    """Whether another recorded recipe would do."""
    if suspect.fine_under:
        text = f"Fine under {listed([escape(recipe) for recipe in suspect.fine_under])}."
    elif len(suspect.verdicts) > 1 and all(verdict.level == "candidate" for verdict in suspect.verdicts):
        text = "No recorded recipe saves it."
    else:
        return []
    return wrap(text, looks.width, indent=_INDENT)


def _evidence(verdict: Verdict, thresholds: Mapping[str, float], looks: Looks) -> Iterator[str]:
    rows = list(_evidence_rows(verdict, thresholds))
    title = f"evidence under {escape(verdict.recipe)}"
    if display_width(title) > _TITLE_WIDTH:
        yield from (looks.dim(line) for line in wrap(title, looks.width, indent=_INDENT))
        title = ""
    header = ("", title, "here", "healthy", "limit")
    head, *body = columns([header, *(row for row, _ in rows)], right=(False, False, True, True, True))
    yield _INDENT + looks.dim(head)
    for line, (_, is_bad) in zip(body, rows, strict=True):
        yield _INDENT + (looks.red(line) if is_bad else line)


def _evidence_rows(verdict: Verdict, thresholds: Mapping[str, float]) -> Iterator[tuple[tuple[str, ...], bool]]:
    """(mark, metric, here, healthy, limit) and whether the limit is passed, for every metric that is known."""
    floor, bound = (of_format(thresholds, name, verdict.fmt) for name in ("sqnr_floor", "gain_bound"))
    healthy_sqnr = f"{verdict.healthy_sqnr_db:.1f}"
    many, gap = thresholds["underflow"], thresholds["gap_bits"]
    for name, value, healthy, limit, is_bad in (
        ("sqnr_low_db", verdict.sqnr_low_db, healthy_sqnr, f"min {floor:.1f}", _is(verdict.sqnr_low_db, below=floor)),
        ("sqnr_db", verdict.sqnr_db, healthy_sqnr, f"min {floor:.1f}", _is(verdict.sqnr_db, below=floor)),
        ("underflow", verdict.underflow, "< 1", f"max {100 * many:g}", _is(verdict.underflow, above=many)),
        ("overflow", verdict.overflow, "0", "", False),
        ("gain", verdict.gain, "1", f"1 +- {bound:.3f}", verdict.gain is not None and abs(verdict.gain - 1) > bound),
        ("scale_gap_bits", verdict.scale_gap_bits, "0", f"max {gap:g}", _is(verdict.scale_gap_bits, above=gap)),
    ):
        if value is not None:
            metric = METRICS[name]
            yield ("!" if is_bad else " ", metric.title, metric.text(value), healthy, limit), is_bad


def _is(value: float | None, *, below: float = float("-inf"), above: float = float("inf")) -> bool:
    return value is not None and (value < below or value > above)


def _course(series: Series | None, verdict: Verdict, looks: Looks) -> Iterator[str]:
    """The sparkline of the metric that hurts between its first and last value."""
    if series is None or len(series.points) < 2:
        return
    metric, values = METRICS[series.metric], [point.value for point in series.points]
    low, high = _limits(series.metric, values, verdict.healthy_sqnr_db)
    first, last = series.points[0], series.points[-1]
    start, end = metric.text(first.value), metric.text(last.value)
    full = "healthy, " if series.metric.startswith("sqnr") else ""
    line = sparkline(
        values,
        low=low,
        high=high,
        width=looks.width - len(_INDENT) - len(start) - len(end) - 2,
        worst=min if series.metric.startswith("sqnr") else max,
        ascii_only=looks.ascii_only,
    )
    steps = step_range(first.first_step, last.last_step)
    title = f"{metric.title}, {steps} (full height: {full}{metric.text(high)}):"
    yield from (looks.dim(text) for text in wrap(title, looks.width, indent=_INDENT))
    yield f"{_INDENT}{start} {line} {end}"


def _limits(metric: str, values: Sequence[float], healthy_sqnr_db: float) -> tuple[float, float]:
    """What the lowest and the highest block stand for: the same for every SQNR, so that entries can be compared."""
    if metric.startswith("sqnr"):
        return 0.0, healthy_sqnr_db
    healthy = 1.0 if metric == "gain" else 0.0
    return min(healthy, *values), max(healthy, *values)
