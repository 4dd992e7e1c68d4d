"""What is said of a run that is being followed, on a screen and in lines alike."""

from __future__ import annotations

import time

from fp8debug.analysis.live import LiveEvent, LiveStep, NonFinite, Snapshot
from fp8debug.cli.render.tables import escape
from fp8debug.cli.render.wording import RUN_STATUS, number, operand, step_range


def closing_line(seen: Snapshot, run_path: str) -> str:
    """How it ended, in one line."""
    reason = f" ({escape(seen.status_reason)})" if seen.status_reason else ""
    return f"{escape(run_path)}: {status_word(seen)}{reason}, {step_text(seen.last_step)}"


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


def nonfinite_text(entry: NonFinite) -> str:
    """`blocks.1.fc2 dy: 4 NaN and 0 Inf, steps 12 to 14`."""
    steps = step_range(entry.first_step, entry.last_step)
    return f"{operand(entry.layer, entry.tensor)}: {entry.n_nan:,} NaN and {entry.n_inf:,} Inf, {steps}"


def event_text(event: LiveEvent) -> str:
    """`step 12 unsupported blocks.1 x: …, 3 times`."""
    when = "" if event.last_step is None else f"step {event.last_step:,} "
    whose = " ".join(filter(None, (escape(event.layer or ""), escape(event.tensor or ""))))
    times = f" ({event.count:,} times)" if event.count > 1 else ""
    return f"{when}{escape(event.kind)}{' ' + whose if whose else ''}: {escape(event.message)}{times}"


def status_word(seen: Snapshot) -> str:
    """The status in few words."""
    return "killed" if seen.status == "killed" else RUN_STATUS.get(seen.status, escape(seen.status))
