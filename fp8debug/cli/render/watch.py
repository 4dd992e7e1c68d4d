"""A run that is being followed, as the lines of a screen."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from fp8debug.analysis.live import LiveOperand, Snapshot, Waiting
from fp8debug.cli.render.fitting import Section, cut, fitted_sections, tail
from fp8debug.cli.render.sparkline import sparkline
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import columns, display_width, escape, pad
from fp8debug.cli.render.watch_words import ago_text, event_text, nonfinite_text, since_text, speed_text, status_word
from fp8debug.cli.render.wording import METRICS, count, number

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
        return [looks.bold("fp8debug watch"), cut(f"waiting: {escape(seen.reason)}", looks), "", looks.dim(LEAVE)]
    head = [*_head(seen, looks, run_path), *([looks.red(cut(f"  {escape(note)}", looks))] if note else [])]
    sections = [_worst(seen, looks), _gaps(seen, looks), _nonfinite(seen, looks), _events(seen, looks)]
    foot = looks.dim(f"{LEAVE}; the run goes on" if seen.status == "running" else LEAVE)
    return fitted_sections(head, sections, foot, height)


def _head(seen: Snapshot, looks: Looks, run_path: str) -> list[str]:
    clock = time.strftime("%H:%M:%S", time.localtime(seen.now_unix_s))
    title = cut(f"fp8debug watch {escape(run_path)}", looks, less=len(clock) + 2)
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
    parts = [status_word(seen) + (f" ({escape(seen.status_reason)})" if seen.status_reason else "")]
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


def _worst(seen: Snapshot, looks: Looks) -> Section:
    if seen.sampled_step is None:
        return Section([looks.bold("WORST OPERANDS"), *_why_none(seen)])
    title = looks.bold(cut(f"WORST OPERANDS at step {seen.sampled_step:,}, the last sampled one", looks))
    if not seen.worst:
        return Section([title, "  none has enough values to say anything"])
    hits = f"  {seen.n_hits} of {count(seen.n_judged, 'operand')} lose more than rounding alone explains"
    rows = [("", "recipe", "to zero", "SQNR", "gap"), *(_operand_cells(entry, looks) for entry in seen.worst)]
    names, *lines = columns(rows, right=(False, False, True, True, True))
    paints = {"hit": looks.red, "watch": looks.yellow}
    shown = [paints.get(entry.level, str)(f"  {line}") for entry, line in zip(seen.worst, lines, strict=True)]
    return Section([title, cut(hits, looks), looks.dim(f"  {names}")], shown, weight=2.0)


def _why_none(seen: Snapshot) -> list[str]:
    if any(step.sampled for step in seen.steps):
        return ["  no errors on disk of a recipe with one scale a tensor;", "  `fp8debug whatif` shows block recipes"]
    return [f"  no sampled step is on disk{'' if seen.has_ended else ' yet'}"]


def _operand_cells(entry: LiveOperand, looks: Looks) -> tuple[str, ...]:
    return (
        _named(entry, looks),
        cut(escape(entry.recipe), looks, width=_RECIPE_WIDTH),
        METRICS["underflow"].text(entry.underflow),
        METRICS["sqnr_db"].text(entry.sqnr_db),
        METRICS["scale_gap_bits"].text(entry.scale_gap_bits),
    )


def _gaps(seen: Snapshot, looks: Looks) -> Section:
    if not seen.gaps or seen.last_step is None:
        return Section()
    title = f"SCALES ABOVE THE IDEAL ONE at step {seen.last_step.step:,}: large values may be clipped"
    rows = [
        (
            _named(entry, looks),
            cut(escape(entry.recipe), looks, width=_RECIPE_WIDTH),
            METRICS["scale_gap_bits"].text(entry.scale_gap_bits),
        )
        for entry in seen.gaps
    ]
    lines = columns(rows, right=(False, False, True))
    return Section([looks.bold(cut(title, looks))], [f"  {line}" for line in lines])


def _nonfinite(seen: Snapshot, looks: Looks) -> Section:
    if not seen.nonfinite:
        return Section()
    title = f"NaN OR Inf in {count(seen.n_nonfinite, 'tensor')} of the last steps"
    return Section([looks.red(title)], [cut(f"  {nonfinite_text(entry)}", looks) for entry in seen.nonfinite])


def _events(seen: Snapshot, looks: Looks) -> Section:
    """Newest first: they outlast others where there is little room."""
    if not seen.events:
        return Section()
    return Section([looks.bold("EVENTS")], [cut(f"  {event_text(event)}", looks) for event in reversed(seen.events)])


def _named(entry: LiveOperand, looks: Looks) -> str:
    """The operand in the columns that are left for it; the end of a layer's name tells more than its beginning."""
    width = looks.width - _FIGURES_WIDTH
    return f"{tail(escape(entry.layer), looks, width=width - 1 - len(entry.tensor))} {escape(entry.tensor)}"


def _labelled(label: str, text: str, looks: Looks, paint: object = None) -> str:
    shown = cut(text, looks, less=2 + _LABEL_WIDTH)
    return f"  {label:<{_LABEL_WIDTH}}{paint(shown) if callable(paint) else shown}"
