"""A run that is being followed, as lines for a pipe: one a new step, event or change."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from fp8debug.analysis.live import LiveOperand, LiveStep, Snapshot, Waiting
from fp8debug.cli.render.tables import escape
from fp8debug.cli.render.watch_words import closing_line, event_text, nonfinite_text, since_text
from fp8debug.cli.render.wording import METRICS, RUN_STATUS, count, number, operand

FIRST_STEPS = 10
"""Steps of a run that goes on already that are told of."""


class WatchLines:
    """Remembers what was told, and tells the rest."""

    def __init__(self) -> None:
        self._told: set[object] = set()
        self._last_step: int | None = None
        self._is_begun = False
        self._said = ""

    def of(self, seen: Snapshot | Waiting, run_path: str) -> Iterator[str]:
        """What is new; without line ends."""
        if isinstance(seen, Waiting):
            yield from self._once(f"waiting: {escape(seen.reason)}")
            return
        if not self._is_begun:
            self._is_begun = True
            script = f", {escape(seen.script)}" if seen.script else ""
            yield f"watching {escape(run_path)}: {RUN_STATUS.get(seen.status, escape(seen.status))}{script}"
        yield from self._steps(seen)
        if seen.sampled_step is not None and seen.worst and self._is_new(("sampled", seen.sampled_step)):
            yield f"step {seen.sampled_step} sampled: worst {_worst_text(seen.worst[0], seen)}"
        for entry in seen.nonfinite:
            if self._is_new(("nonfinite", entry.layer, entry.tensor)):
                yield f"not finite: {nonfinite_text(entry)}"
        for event in seen.events:
            if self._is_new(("event", event.kind, event.message, event.count)):
                yield f"event: {event_text(event)}"
        if since := since_text(seen):
            if self._is_new(("silent", self._last_step, seen.status)):
                yield since
        elif seen.last_step is not None:
            self._told -= {("silent", self._last_step, "running")}

    def note(self, message: str) -> Iterator[str]:
        """Why a look failed; told once as long as it stays the same."""
        yield from self._once(escape(message))

    def _once(self, line: str) -> Iterator[str]:
        if line != self._said:
            self._said = line
            yield line

    def _steps(self, seen: Snapshot) -> Iterator[str]:
        last = self._last_step
        if last is not None and seen.steps and seen.steps[-1].step < last:  # resumed before it
            yield f"resumed at step {seen.steps[-1].step}"
            last = seen.steps[-1].step - 1
        new = seen.steps[-FIRST_STEPS:] if last is None else [step for step in seen.steps if step.step > last]
        if last is not None and new and new[0].step > last + 1:
            yield f"... {count(new[0].step - last - 1, 'step')} between"
        yield from map(step_line, new)
        if new:
            self._last_step = new[-1].step

    def _is_new(self, key: object) -> bool:
        is_new = key not in self._told
        self._told.add(key)
        return is_new


def step_line(step: LiveStep) -> str:
    """`step 12  loss 3.214  grad_norm 1.02  lr 0.0003  0.41 s`."""
    cells = [f"step {step.step}"]
    cells += [
        f"{name} {number(value)}"
        for name, value in (("loss", step.loss), ("grad_norm", step.grad_norm), ("lr", step.lr))
        if value is not None
    ]
    if step.duration_s is not None:
        cells.append(f"{step.duration_s:.3g} s")
    return "  ".join([*cells, *(["skipped by the GradScaler"] if step.skipped else [])])


def end_lines(seen: Snapshot, run_path: str) -> Iterator[str]:
    """How it ended, and what to do next."""
    yield closing_line(seen, run_path)
    yield f"next: fp8debug report {shlex.quote(run_path)}"


def _worst_text(entry: LiveOperand, seen: Snapshot) -> str:
    figures = [
        f"{METRICS['underflow'].text(entry.underflow)} to zero" if entry.underflow is not None else "",
        f"SQNR {METRICS['sqnr_db'].text(entry.sqnr_db)}" if entry.sqnr_db is not None else "",
        f"gap {METRICS['scale_gap_bits'].text(entry.scale_gap_bits)}" if entry.scale_gap_bits is not None else "",
    ]
    hits = f"; {seen.n_hits} of {count(seen.n_judged, 'operand')} lose more than rounding alone explains"
    name = f"{operand(entry.layer, entry.tensor)} under {escape(entry.recipe)}"
    return f"{name}: {', '.join(filter(None, figures))}{hits}"
