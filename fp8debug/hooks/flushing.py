"""When what was collected goes to disk: often enough that a kill costs little, seldom enough that files stay few."""

from __future__ import annotations

import time

from fp8debug.hooks.flight import FlightRecorder
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.writer import PartWriter


class Flushing:
    """Hands rows over to the writer."""

    def __init__(self, writer: PartWriter, recorder: Recorder, flight: FlightRecorder | None) -> None:
        self._writer = writer
        self._recorder = recorder
        self._flight = flight
        self._opened_s = self._flushed_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the last time is long enough ago."""
        now = time.monotonic()
        return now - self._flushed_s > flush_interval_s(now - self._opened_s)

    def flush(self) -> None:
        """Hand over what was collected; raises what the writer's thread has died of."""
        if self._writer.error is not None:
            raise self._writer.error
        self._flushed_s = time.monotonic()
        self._writer.submit(self._take_batch())

    def flush_last(self) -> None:
        """Hand over what there is when we fail: the end of the flight recorder's steps too."""
        if self._flight is not None:
            self._flight.close(failed=False)
        self._writer.write_last(self._take_batch())

    def _take_batch(self) -> Batch:
        return self._recorder.take_batch(wait=False) if self._flight is None else self._flight.take_out()


def flush_interval_s(elapsed_s: float) -> float:
    """Seconds between flushes: a twentieth of the run so far, so a kill costs at most 5 % and files stay few."""
    return min(max(elapsed_s / 20, 1.0), 300.0)
