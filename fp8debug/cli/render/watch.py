"""A run that is being followed, as the lines of a screen."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from fp8debug.analysis.live import LiveEvent, LiveOperand, LiveStep, NonFinite, Snapshot, Waiting
from fp8debug.cli.render.sparkline import sparkline
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, display_width, escape, pad
from fp8debug.cli.render.wording import METRICS, RUN_STATUS, count, number, operand, step_range

LEAVE = "Ctrl-C leaves"
_LABEL_WIDTH = 10
_NUMBER_WIDTH = 9
_RECIPE_WIDTH = 12
_FIGURES_WIDTH = 47
"""Columns of a line about an operand that are not its name."""


def screen_lines(seen: Snapshot | Waiting, looks: Looks, height: int, *, run_path: str, note: str = "") -> list[str]:
    """At most `height` lines of at most `looks.width` columns.

    Args:
        seen: what the last look gave.
        looks: of the terminal.
        height: lines that it has.
        run_path: the run as a person would type it.
        note: why the newest look failed, when it did.
    """
    if isinstance(seen, Waiting):
        return [looks.bold("fp8debug watch"), _cut(f"waiting: {escape(seen.reason)}", looks), "", looks.dim(LEAVE)]
    sections = [
        [*_head(seen, looks, run_path), *([looks.red(_cut(f"  {escape(note)}", looks))] if note else [])],
        _worst(seen, looks),
        _gaps(seen, looks),
        _nonfinite(seen, looks),
        _events(seen, looks),
        [looks.dim(f"{LEAVE}; the run goes on" if seen.status == "running" else LEAVE)],
    ]
    return _fitted([section for section in sections if section], height)


def closing_line(seen: Snapshot, run_path: str) -> str:
    """How it ended, in one line."""
    reason = f" ({escape(seen.status_reason)})" if seen.status_reason else ""
    return f"{escape(run_path)}: {_status_word(seen)}{reason}, {step_text(seen.last_step)}"


def step_text(step: LiveStep | None) -> str:
    """`step 12, loss 3.21`."""
    if step is None:
        return "before the first step was over"
    return f"step {step.step:,}" + ("" if step.loss is None else f", loss {number(step.loss)}")


def since_text(seen: Snapshot) -> str:
    """Since when nothing has come; empty while nothing is wrong with that."""
    last = seen.last_step
    when = "" if last is None or last.ended_unix_s is None else f" since {clock_text(last.ended_unix_s)}"
    ago = "" if seen.age_s is None else f" ({ago_text(seen.age_s)})"
    if seen.status == "killed":
        return f"its process is gone; nothing new{when}{ago}"
    return f"nothing new{when}{ago}" if seen.is_late else ""


def ago_text(seconds: float) -> str:
    """`1.9 s`, `12 s`, `5 min`, `3 h`, `2 days`."""
    for limit, unit_s, unit in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / unit_s:.{1 if seconds < 9.95 else 0}f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def clock_text(unix_s: float) -> str:
    """The time of day, with the date when it is another day's."""
    when, today = time.localtime(unix_s), time.localtime()
    return time.strftime("%H:%M:%S" if when[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", when)


def speed_text(step_s: float) -> str:
    """`2.1 steps/s`, `8.9 s a step`."""
    return f"{1 / step_s:.3g} steps/s" if 0 < step_s < 1 else f"{step_s:.3g} s a step"


def _head(seen: Snapshot, looks: Looks, run_path: str) -> list[str]:
    clock = time.strftime("%H:%M:%S", time.localtime(seen.now_unix_s))
    title = _cut(f"fp8debug watch {escape(run_path)}", looks, less=len(clock) + 2)
    lines = [f"{looks.bold(title)}{clock:>{max(1, looks.width - display_width(title))}}"]
    lines.append(_labelled("status", _status(seen), looks, paint=_status_paint(seen, looks)))
    if since := since_text(seen):
        lines.append(_labelled("", since, looks, paint=looks.red if seen.status == "killed" else looks.yellow))
    lines.append(_labelled("step", _step(seen), looks))
    for label, values in (("loss", [s.loss for s in seen.steps]), ("gradient", [s.grad_norm for s in seen.steps])):
        if any(value is not None for value in values):
            lines.append(_curve(label, values, looks))
    if seen.problems:
        lines.append(_labelled("left out", escape(seen.problems[-1]), looks, paint=looks.yellow))
    return lines


def _status(seen: Snapshot) -> str:
    parts = [_status_word(seen) + (f" ({escape(seen.status_reason)})" if seen.status_reason else "")]
    if seen.script:
        parts.append(escape(seen.script))
    if seen.n_ranks > 1:
        read = "" if seen.n_ranks_read == seen.n_ranks else f", {seen.n_ranks_read} of them shown"
        parts.append(f"{seen.n_ranks} ranks{read}")
    if seen.dead_ranks:
        parts.append(f"{count(len(seen.dead_ranks), 'rank')} gone")
    if seen.n_segments > 1:
        parts.append(f"resumed {count(seen.n_segments - 1, 'time')}")
    return "; ".join(parts)


def _status_word(seen: Snapshot) -> str:
    return "killed" if seen.status == "killed" else RUN_STATUS.get(seen.status, escape(seen.status))


def _status_paint(seen: Snapshot, looks: Looks) -> object:
    if seen.status in ("killed", "failed", "disabled") or seen.dead_ranks:
        return looks.red
    return looks.green if seen.status in ("running", "closed") else looks.yellow


def _step(seen: Snapshot) -> str:
    last = seen.last_step
    if last is None:
        return "none on disk yet"
    parts = [f"{last.step:,}"]
    if seen.age_s is not None:
        parts[0] += f", {ago_text(seen.age_s)} old"
    if seen.holds_back:
        parts.append("the flight recorder holds later ones back")
    if seen.step_s is not None:
        parts.append(speed_text(seen.step_s))
    if last.lr is not None:
        parts.append(f"lr {number(last.lr)}")
    return "; ".join(parts)


def _curve(label: str, values: Sequence[float | None], looks: Looks) -> str:
    known = [value for value in values if value is not None and math.isfinite(value)]
    width = looks.width - 2 - _LABEL_WIDTH - _NUMBER_WIDTH - 1
    drawn = sparkline(
        values,
        low=min(known, default=0.0),
        high=max(known, default=1.0),
        width=max(8, width),
        worst=max,
        ascii_only=looks.ascii_only,
    )
    last = values[-1]
    shown = pad(number(last), _NUMBER_WIDTH)
    is_bad = last is not None and not math.isfinite(last)
    return f"  {label:<{_LABEL_WIDTH}}{looks.red(shown) if is_bad else shown} {drawn}"


def _worst(seen: Snapshot, looks: Looks) -> list[str]:
    if seen.sampled_step is None:
        return [looks.bold("WORST OPERANDS"), "  no sampled step is on disk yet"]
    title = f"WORST OPERANDS at step {seen.sampled_step:,}, the last sampled one"
    if not seen.worst:
        return [looks.bold(_cut(title, looks)), "  none has enough values to say anything"]
    hits = f"  {seen.n_hits} of {count(seen.n_judged, 'operand')} lose more than rounding alone explains"
    rows = [("", "recipe", "to zero", "SQNR", "gap"), *(_operand_cells(entry, looks) for entry in seen.worst)]
    head, *lines = columns(rows, right=(False, False, True, True, True))
    paints = {"hit": looks.red, "watch": looks.yellow}
    shown = [paints.get(entry.level, str)(line) for entry, line in zip(seen.worst, lines, strict=True)]
    return [looks.bold(_cut(title, looks)), _cut(hits, looks), looks.dim(f"  {head}"), *(f"  {line}" for line in shown)]


def _operand_cells(entry: LiveOperand, looks: Looks) -> tuple[str, ...]:
    return (
        _named(entry, looks),
        _cut(escape(entry.recipe), looks, width=_RECIPE_WIDTH),
        METRICS["underflow"].text(entry.underflow),
        METRICS["sqnr_db"].text(entry.sqnr_db),
        METRICS["scale_gap_bits"].text(entry.scale_gap_bits),
    )


def _gaps(seen: Snapshot, looks: Looks) -> list[str]:
    if not seen.gaps or seen.last_step is None:
        return []
    title = f"SCALES ABOVE THE IDEAL ONE at step {seen.last_step.step:,}: large values may be clipped"
    rows = [
        (
            _named(entry, looks),
            _cut(escape(entry.recipe), looks, width=_RECIPE_WIDTH),
            METRICS["scale_gap_bits"].text(gap),
        )
        for entry in seen.gaps
        if (gap := entry.scale_gap_bits) is not None
    ]
    return [looks.bold(_cut(title, looks)), *(f"  {line}" for line in columns(rows, right=(False, False, True)))]


def _nonfinite(seen: Snapshot, looks: Looks) -> list[str]:
    if not seen.nonfinite:
        return []
    title = f"NaN OR Inf in {count(seen.n_nonfinite, 'tensor')} of the last steps"
    return [looks.red(title), *(_cut(f"  {nonfinite_text(entry)}", looks) for entry in seen.nonfinite)]


def nonfinite_text(entry: NonFinite) -> str:
    """`blocks.1.fc2 dy: 4 NaN and 0 Inf, steps 12 to 14`."""
    steps = step_range(entry.first_step, entry.last_step)
    return f"{operand(entry.layer, entry.tensor)}: {entry.n_nan:,} NaN and {entry.n_inf:,} Inf, {steps}"


def _events(seen: Snapshot, looks: Looks) -> list[str]:
    if not seen.events:
        return []
    return [looks.bold("EVENTS"), *(_cut(f"  {event_text(event)}", looks) for event in seen.events)]


def event_text(event: LiveEvent) -> str:
    """`step 12 unsupported blocks.1 x: …, 3 times`."""
    when = "" if event.last_step is None else f"step {event.last_step:,} "
    whose = " ".join(filter(None, (escape(event.layer or ""), escape(event.tensor or ""))))
    times = f" ({event.count:,} times)" if event.count > 1 else ""
    return f"{when}{escape(event.kind)}{' ' + whose if whose else ''}: {escape(event.message)}{times}"


def _named(entry: LiveOperand, looks: Looks) -> str:
    """The operand in the columns that are left for it; the end of a layer's name tells more than its beginning."""
    width = looks.width - _FIGURES_WIDTH
    return f"{_tail(escape(entry.layer), width - 1 - len(entry.tensor), looks)} {escape(entry.tensor)}"


def _tail(text: str, width: int, looks: Looks) -> str:
    """The end of the text, as much as fits."""
    mark = ".." if looks.ascii_only else "…"
    if display_width(text) <= width:
        return text
    while text and display_width(text) > width - len(mark):
        text = text[1:]
    return mark + text


def _cut(text: str, looks: Looks, less: int = 0, width: int | None = None) -> str:
    """The beginning of the text, as much as fits a line, or `width` columns."""
    mark = ".." if looks.ascii_only else "…"
    width = looks.width - less if width is None else width
    if display_width(text) <= width:
        return text
    while text and display_width(text) > width - len(mark):
        text = text[:-1]
    return text + mark


def _labelled(label: str, text: str, looks: Looks, paint: object = None) -> str:
    shown = _cut(text, looks, less=2 + _LABEL_WIDTH)
    return f"  {label:<{_LABEL_WIDTH}}{paint(shown) if callable(paint) else shown}"


def _fitted(sections: list[list[str]], height: int) -> list[str]:
    """All sections with a blank line between, the longest ones cut at their ends until they fit."""
    for between in (1, 0):
        sections = [list(section) for section in sections]
        while sum(map(len, sections)) + between * (len(sections) - 1) > height:
            longest = max(sections[1:] or sections, key=len)
            if len(longest) <= (1 if not between else 3):
                break
            longest.pop()
        if sum(map(len, sections)) + between * (len(sections) - 1) <= height:
            break
    lines = [line for section in sections for line in (*section, *[""] * between)]
    return lines[: len(lines) - between][:height]
