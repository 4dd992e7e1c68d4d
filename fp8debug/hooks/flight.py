"""The flight recorder: every step is counted, the last ones wait in bounded memory for a trigger.

A step that the schedule samples is written as always. Any other waits, whole, in a ring. When a trigger fires the ring
is written as it is and starts anew; a step that falls out of it is written without what sampled steps have, so that
health and scales are there of every step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fp8debug.config import CaptureOptions
from fp8debug.hooks.clock import FinishedStep
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.training import StepReport
from fp8debug.hooks.triggers import WINDOW, Fired, Triggers
from fp8debug.schema import TABLES

MB = 1 << 20
MEASURED_STEPS = 4
"""Steps that the cost is measured over; the first two of them, which pay for everything's start, are left out."""
_AT_ONCE = ("events", "evals", "values")
"""Tables whose rows do not wait: what a person asked for, or should know now."""
_THIN = ("tensors", "scales")
"""Tables that steps have which are not sampled."""
_TENSOR_COLUMNS = TABLES["tensors"].column_names
_WHEN_SAMPLED: dict[int, Any] = {
    _TENSOR_COLUMNS.index("sampled"): False,
    _TENSOR_COLUMNS.index("approx"): None,
    _TENSOR_COLUMNS.index("checksum"): None,
}

StepRow = Callable[..., tuple[Any, ...]]
"""Makes the step's row of the table `steps`; takes `sampled`."""


@dataclass(slots=True)
class _Step:
    step: int
    batch: Batch
    row: StepRow
    n_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Quoted:
    """What fired, with what its step reported."""

    fired: Fired
    report: StepReport

    def message(self, written: str) -> str:
        """In words, with loss and gradient norm of the step; may wait for a device."""
        numbers = {"loss": self.report.loss()[0], "gradient norm": self.report.grad_norm()[0]}
        told = self.fired.message
        quoted = [f"{n} {v:.6g}" for n, v in numbers.items() if v is not None and not told.startswith(f"the {n}")]
        at = f" (at {', '.join(quoted)})" if quoted else ""
        return f"{self.fired.trigger}: {told}{at}; {written}"


class FlightRecorder:
    """The steps that wait, and what has left them to be written."""

    def __init__(self, options: CaptureOptions, recorder: Recorder, say: Callable[[str], None]) -> None:
        passes = ("forward", "backward", *(("eval",) if options.inference else ()))
        self._triggers = Triggers(options.trigger, passes)
        self._memory_mb = options.flight_memory
        self._recorder = recorder
        self._say = say
        self._ring: deque[_Step] = deque()
        self._ring_bytes = 0
        self._out = Batch()
        self._unjudged: deque[tuple[int, StepReport]] = deque()
        self._is_cut = False
        """Of the step under way something was let go: it alone is more than the memory holds."""
        self._said_cut = False
        self._is_introduced = False
        self._n_seen = 0
        self._kept_bytes = self._sampled_bytes = 0
        self._costs: list[float] = []
        self._next_write = self._next_amax_write = 0
        self._unwritten: list[Fired] = []
        self.spent_s = 0.0
        """Time that the step under way has lost to us, the end of the one before included; observers add to it."""

    @property
    def n_bytes(self) -> int:
        """Memory of the steps that wait, the one under way included."""
        return self._ring_bytes + self._recorder.n_bytes

    @property
    def is_full(self) -> bool:
        """Whether `make_room` has something to do."""
        return self.n_bytes > self._memory_mb * MB

    @property
    def n_kept_steps(self) -> int:
        """K: how many steps fit that are as large as the largest so far; sampled ones, which do not wait, apart."""
        return max(1, self._memory_mb * MB // max(1, self._kept_bytes or self._sampled_bytes))

    @property
    def out_bytes(self) -> int:
        """Memory of what waits to be written."""
        return self._out.n_bytes

    def take_out(self) -> Batch:
        """Hand over what is to be written."""
        out, self._out = self._out, Batch()
        return out

    def make_room(self, *, scheduled: bool) -> None:
        """Let go of the oldest steps until the memory holds the rest; of the step under way only when it must be."""
        while self._ring and self.is_full:
            self._let_go(whole=False)
        if self.is_full:
            batch = self._recorder.take_batch()
            self._out.extend(batch if scheduled else thinned(batch))
            self._is_cut = self._is_cut or not scheduled

    def end_step(self, finished: FinishedStep, row: StepRow, report: StepReport, *, scheduled: bool) -> None:
        """Take the records of the step that is over; write, keep and let go as the rules say."""
        self._measure_cost(finished)
        started_s = time.perf_counter()
        step = _Step(finished.step, self._recorder.take_batch(), row)
        fired = [
            _Quoted(one, report) for one in self._triggers.judge_tensors(step.step, step.batch.rows["tensors"].rows)
        ]
        for name in _AT_ONCE:
            _move(step.batch, self._out, name)
        step.n_bytes = step.batch.n_bytes
        if scheduled:
            self._sampled_bytes = max(self._sampled_bytes, step.n_bytes)
        else:
            self._kept_bytes = max(self._kept_bytes, step.n_bytes)
        if scheduled or self._is_cut:
            self._release(step, whole=scheduled)
            self._note_cut(step)
        else:
            self._ring.append(step)
            self._ring_bytes += step.n_bytes
            self.make_room(scheduled=False)
        self._unjudged.append((step.step, report))
        fired += self._judge_numbers(wait=False)
        self._act_on(fired)
        self._n_seen += 1
        if self._n_seen == MEASURED_STEPS:
            self._introduce()
        self.spent_s += time.perf_counter() - started_s

    def close(self, *, failed: bool) -> None:
        """Let go of everything: whole when the training failed, since its last steps may say why."""
        self._out.extend(self._recorder.take_batch())
        self._introduce()
        self._act_on(self._judge_numbers(wait=True))
        if failed and self._ring:
            self._recorder.event("trigger", f"the training failed; {self._write_ring()}", step=None)
        while self._ring:
            self._let_go(whole=False)
        self._note_unwritten()
        self._out.extend(self._recorder.take_batch())

    def _judge_numbers(self, *, wait: bool) -> list[_Quoted]:
        """Judge loss and gradient norm of the steps whose numbers have come to the host."""
        fired = []
        while self._unjudged and (wait or self._unjudged[0][1].is_here):
            step, report = self._unjudged.popleft()
            found = self._triggers.judge_numbers(step, report.loss()[0], report.grad_norm()[0])
            fired += [_Quoted(one, report) for one in found]
        return fired

    def _act_on(self, fired: list[_Quoted]) -> None:
        if not fired:
            return
        step, by_amax = fired[-1].fired.step, all(one.fired.is_of_amax for one in fired)
        if step < (self._next_amax_write if by_amax else self._next_write):
            self._unwritten += (one.fired for one in fired)
            return
        self._note_unwritten()
        self._next_write = step + self.n_kept_steps
        self._next_amax_write = step + max(self.n_kept_steps, WINDOW)
        written = self._write_ring()
        for quoted in fired:
            one = quoted.fired
            message = partial(quoted.message, written)
            self._recorder.event_later("trigger", message, step=one.step, layer=one.layer, tensor=one.tensor)
        first = fired[0].fired
        where = f" in {first.layer} {first.tensor}" if first.layer else ""
        self._say(f"fp8debug: trigger {first.trigger} at step {first.step}{where}: {written}")

    def _write_ring(self) -> str:
        """Let all steps go whole; says which."""
        numbers = [step.step for step in self._ring]
        while self._ring:
            self._let_go(whole=True)
        if not numbers:
            return "no other step was kept"
        steps = f"steps {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"step {numbers[0]}"
        return f"{steps} written in full"

    def _note_unwritten(self) -> None:
        if self._unwritten:
            first, last, n = self._unwritten[0], self._unwritten[-1], len(self._unwritten)
            when = f"at step {first.step}" if n == 1 else f"from step {first.step} to {last.step}"
            self._recorder.event(
                "trigger",
                f"{n} more {when} ({first.trigger}: {first.message}), not written: at most one write in "
                f"{self.n_kept_steps} steps, and of an amax alone in {max(self.n_kept_steps, WINDOW)}",
                step=first.step,
                layer=first.layer,
                tensor=first.tensor,
            )
            self._unwritten.clear()

    def _let_go(self, *, whole: bool) -> None:
        """Let the oldest step go."""
        step = self._ring.popleft()
        self._ring_bytes -= step.n_bytes
        self._release(step, whole=whole)

    def _release(self, step: _Step, *, whole: bool) -> None:
        self._out.extend(step.batch if whole else thinned(step.batch))
        self._out.rows["steps"].append_deferred(partial(step.row, sampled=whole))

    def _note_cut(self, step: _Step) -> None:
        if self._is_cut and not self._said_cut:
            self._said_cut = True
            text = f"one step takes more than flight_memory ({self._memory_mb} MB): no step is kept; give it more"
            self._recorder.event("not_captured", text, step=step.step)
            self._say(f"fp8debug: flight recorder: {text}")
        self._is_cut = False

    def _measure_cost(self, finished: FinishedStep) -> None:
        """Note what counting costs, over the first steps; called once a step."""
        spent_s, self.spent_s = self.spent_s, 0.0
        if 2 <= self._n_seen < MEASURED_STEPS and finished.duration_s > 0:
            self._costs.append(spent_s / finished.duration_s)

    def _introduce(self) -> None:
        """Say once how far back the memory reaches, and what that costs."""
        if not self._n_seen or self._said_cut or self._is_introduced:
            return
        self._is_introduced = True
        cost = f", which takes about {sum(self._costs) / len(self._costs):.0%} of a step's time" if self._costs else ""
        self._say(
            f"fp8debug: flight recorder: the last {self.n_kept_steps:,} steps fit {self._memory_mb} MB; every step is "
            f"counted{cost}"
        )


def thinned(batch: Batch) -> Batch:
    """What of a batch is recorded in steps that are not sampled; the records say so of themselves."""
    thin = Batch()
    for name in (*_AT_ONCE, *_THIN):
        _move(batch, thin, name)
    rows = thin.rows["tensors"]
    unsampled = [_unsampled(row) for row in rows.rows]
    thin.rows["tensors"] = type(rows)("tensors")
    for row in unsampled:
        thin.rows["tensors"].append(row)
    return thin


def _unsampled(row: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(_WHEN_SAMPLED.get(place, cell) for place, cell in enumerate(row))


def _move(source: Batch, target: Batch, table: str) -> None:
    buffer = source.rows[table]
    source.rows[table] = type(buffer)(table)
    target.rows[table].extend(buffer)
