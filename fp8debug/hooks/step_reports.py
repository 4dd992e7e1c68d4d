"""From a finished step to its row in `steps`, and to events about its gradients."""

from __future__ import annotations

from functools import partial

from fp8debug.hooks.clock import FinishedStep
from fp8debug.hooks.flight import FlightRecorder
from fp8debug.hooks.recorder import EventCells, Recorder
from fp8debug.hooks.roster import Roster
from fp8debug.hooks.training import StepReport

MAX_NAMED = 8
"""Layers named one by one when the gradients of many are not finite."""


class StepReports:
    """Passes on what the training reported of each step."""

    def __init__(
        self, recorder: Recorder, roster: Roster, flight: FlightRecorder | None, *, segment: int, rank: int
    ) -> None:
        self._recorder = recorder
        self._roster = roster
        self._flight = flight
        self._segment = segment
        self._rank = rank
        self._gradients_broke = False

    def add(self, finished: FinishedStep, report: StepReport, *, scheduled: bool) -> None:
        """The step is over; numbers that are still on their way to the host are waited for by the writer."""
        row = partial(report.row, finished, segment=self._segment, rank=self._rank)
        if self._flight is None:
            self._recorder.add_step(partial(row, sampled=scheduled))
        else:
            self._flight.end_step(finished, row, report, scheduled=scheduled)
        if report.gradients and not finished.skipped:
            self._recorder.add_late_events(partial(self._broken_gradients, report, finished.step))

    def _broken_gradients(self, report: StepReport, step: int) -> list[EventCells]:
        """Events about weight gradients that are not finite; called on the writer's thread, until there are any."""
        broken = [] if self._gradients_broke else report.nonfinite_gradients()
        if not broken:
            return []
        self._gradients_broke = True
        layer_of = self._roster.layer_of_weight()
        names = [layer_of[parameter] for parameter in broken if parameter in layer_of]
        text = f"step {step}, wgrad: the weight gradient has NaN or Inf"
        if len(names) > MAX_NAMED:
            text += f", like those of {len(names) - 1} other layers"
        if not names:
            text = f"step {step}: NaN or Inf in {len(broken)} gradients, none of them of a recorded layer's weight"
            return [(step, "nonfinite", None, None, text)]
        return [(step, "nonfinite", name, "dw", text) for name in names[:MAX_NAMED]]
