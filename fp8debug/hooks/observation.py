"""What backends report to: every operand is measured as the plan says, when the plan says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.clock import Clock
from fp8debug.hooks.emulate.linear import emulated_forward
from fp8debug.hooks.flight import FlightRecorder
from fp8debug.hooks.observed import Observed
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.probe.gemms import GemmProbe
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.roster import Roster
from fp8debug.hooks.schedule import Schedule
from fp8debug.hooks.transforms import held_by, is_plain
from fp8debug.replay import Moment, ScaleInForce

MAX_BUFFERED_BYTES = 8 << 20
"""Memory of the rows that are being collected."""


class Observation:
    """The observer of one session."""

    def __init__(
        self,
        plan: CapturePlan,
        recorder: Recorder,
        roster: Roster,
        clock: Clock,
        *,
        flush: Callable[[], None],
        fail: Callable[[Exception], None],
        flight: FlightRecorder | None = None,
    ) -> None:
        self.plan = plan
        """What is taken; may be replaced between two steps."""
        self.clock = clock
        self.tensors = frozenset(plan.options.tensors)
        """Which tensors are wanted."""
        self.active = False
        self.fail = fail
        self.skipped: dict[str, dict[str, None]] = {}
        """Reason → layers that cannot be captured, in order."""
        self._recorder = recorder
        self._roster = roster
        self._flush = flush
        self._flight = flight
        self._probe = self._gemm_probe()
        recorder.takes_details = self._takes_details
        recorder.make_room = self._make_room
        self._not_probed: set[str] = set()
        """Layers that are a GEMM for each head: their tensors as a whole are no operands of one."""
        self._weights_seen: set[tuple[str, int]] = set()
        self._former: tuple[int, Schedule] | None = None
        """What held before that step."""
        self._left_out: frozenset[str] = frozenset()
        self._raw_step: int | None = None
        self._asked: tuple[int, bool, bool] | None = None
        """Of the latest step that was asked about: whether it is scheduled, whether raw values are dumped."""

    @property
    def attention(self) -> bool:
        """Whether the GEMMs inside attention are wanted."""
        return self.plan.options.attention

    @property
    def serves(self) -> bool:
        """Whether evaluation passes are what is recorded."""
        return self.plan.options.inference

    @property
    def is_full(self) -> bool:
        """Whether what was collected should be written before more is."""
        waiting = self._recorder.n_bytes if self._flight is None else self._flight.out_bytes
        return waiting > MAX_BUFFERED_BYTES

    def is_sampled(self, step: int) -> bool:
        """Whether more than health is taken in `step`."""
        return self._flight is not None or self.is_scheduled(step)

    def change(
        self, plan: CapturePlan, *, from_step: int, left_out: frozenset[str], raw_step: int | None = None
    ) -> None:
        """Take what `plan` says from `from_step` on.

        Args:
            left_out: layers that are reported still, but recorded no more.
            raw_step: step whose raw values are dumped once; it is sampled too.
        """
        before, self.plan = self.plan, plan
        self.tensors = frozenset(plan.options.tensors)
        self._former = (from_step, before.schedule)
        self._left_out = left_out
        self._raw_step = raw_step if raw_step is not None else self._raw_step
        self._asked = None
        if plan.options.detail != before.options.detail or plan.options.tensors != before.options.tensors:
            self._recorder.set_details(plan.recipes, plan.options.detail)
            self.drop()
            self._probe = self._gemm_probe()

    def thin(self, keep: int) -> None:
        """From the next step on take one in `keep` of the steps that would be sampled; none for 0."""
        plan = replace(self.plan, schedule=replace(self.plan.schedule, keep=keep))
        self.change(plan, from_step=self.clock.step + 1, left_out=self._left_out)

    def is_scheduled(self, step: int) -> bool:
        """Whether what is taken in `step` is written, whatever happens."""
        return self._asked_of(step)[1]

    def takes(self, layer: str) -> bool:
        """Whether the layer is to be recorded."""
        return self.plan.selection.takes(layer)

    def observe(self, seen: Observed) -> None:
        """Measure one operand; of evaluation passes only the first of a sampled step, unless the run serves."""
        moment = seen.moment
        if seen.layer in self._left_out:
            return
        _, scheduled, raw = self._asked_of(moment.step)
        if self._is_aside(moment) and (moment.call or not scheduled):
            return
        sampled = scheduled or self._flight is not None
        started_s = 0.0 if self._flight is None else time.perf_counter()
        if not seen.framework and (emulated := self._emulated_scales(seen.layer, seen.tensor)):
            seen = seen._replace(framework=emulated)
        if not is_plain(seen.value):
            seen = seen._replace(value=held_by(seen.value))
        facts = self._recorder.record(seen, sampled=sampled, raw=raw)
        if facts is not None and self._probe is not None and seen.layer not in self._not_probed:
            self._probe.observe(seen, facts)
        if sampled or raw:
            self._make_room()
        if self._flight is not None:
            self._flight.spent_s += time.perf_counter() - started_s

    def wants_weight(self, layer: str, moment: Moment) -> bool:
        """Weights change once a step: they are taken in the first training forward of it.

        Of a model that serves they do not change: they are taken in sampled steps.
        """
        if moment.pass_ == "eval" and self.plan.options.inference:
            if not self.is_scheduled(moment.step):
                return False
        elif moment.pass_ != "forward":
            return False
        if (layer, moment.step) in self._weights_seen:
            return False
        self._weights_seen.add((layer, moment.step))
        return True

    def miss(
        self,
        layer: str,
        tensor: str,
        moment: Moment,
        framework: Sequence[ScaleInForce] = (),
        amax: Callable[[], float] | None = None,
    ) -> None:
        """Let histories know of a pass whose tensor cannot be seen."""
        self._recorder.miss(layer, tensor, moment, framework, amax)

    def found(self, layer: FoundLayer) -> bool:
        """Enter a layer that showed only while the model ran."""
        taken = self.takes(layer.name)
        self._roster.add_found(layer, taken=taken)
        if layer.kind == "attention":
            self._not_probed.add(layer.name)
        return taken

    def ran(self, layer: str) -> None:
        """Nothing is to be recorded of a layer whose module was called."""
        self._recorder.fired.add(layer)

    def skip(self, layer: str, reason: str) -> None:
        """Note, once a layer, that it cannot be captured."""
        self._recorder.fired.add(layer)
        self.skipped.setdefault(reason, {})[layer] = None
        self._recorder.note_unsupported(layer, None, reason, self.clock.step)

    def note(self, kind: str, message: str, layer: str | None = None, tensor: str | None = None) -> None:
        """Something that went wrong or is missing."""
        self._recorder.event(kind, message, step=self.clock.step, layer=layer, tensor=tensor)

    def end_step(self, step: int) -> None:
        """The step is over."""
        self._weights_seen.clear()
        if self._probe is not None:
            self._probe.end_step(step)

    def drop(self) -> None:
        """Keep nothing of any tensor."""
        if self._probe is not None:
            self._probe.drop()

    def _make_room(self) -> None:
        """Let what was collected go as far as the memory for it asks for."""
        if self._flight is not None and self._flight.is_full:
            self._flight.make_room(scheduled=self.is_scheduled(self.clock.step))
        if self.is_full:
            self._flush()

    def _schedule_of(self, step: int) -> Schedule:
        return self._former[1] if self._former is not None and step < self._former[0] else self.plan.schedule

    def _asked_of(self, step: int) -> tuple[int, bool, bool]:
        """Step, whether it is scheduled, whether raw values are dumped; kept, since every tensor of a step asks."""
        if self._asked is None or self._asked[0] != step:
            schedule, is_raw = self._schedule_of(step), step == self._raw_step
            self._asked = step, schedule.sampled(step) or is_raw, schedule.raw(step) or is_raw
        return self._asked

    def _is_aside(self, moment: Moment) -> bool:
        """Whether this pass is beside what the run is about."""
        return moment.pass_ == "eval" and not self.plan.options.inference

    def _takes_details(self, moment: Moment) -> bool:
        return self.is_scheduled(moment.step) and not self._is_aside(moment)

    def _emulated_scales(self, layer: str, tensor: str) -> Sequence[ScaleInForce]:
        """What an emulated layer really casts with, ours or one that the script emulates by itself."""
        module = self._roster.module(layer)
        forward = None if module is None else emulated_forward(module)
        if forward is None or forward.last_call is None or tensor not in ("x", "w", "dy"):
            return ()
        return forward.last_call.scales_in_force(tensor)

    def _gemm_probe(self) -> GemmProbe | None:
        options, recorder = self.plan.options, self._recorder
        if "gemms" not in options.detail or not {"x", "w"} <= self.tensors:
            return None
        return GemmProbe(
            self.plan.recipes,
            options.accumulation,
            options.probe_memory,
            partial(recorder.add_cells, "gemms"),
            lambda message, step: recorder.event("probe_memory", message, step=step),
            serves=options.inference,
        )
