"""When what was collected goes to disk: often enough that a kill costs little, seldom enough that files stay few."""

from __future__ import annotations

import time

from fp8debug.hooks.dropping import Dropping
from fp8debug.hooks.flight import FlightRecorder
from fp8debug.hooks.recorder import Recorder
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.writer import SPARE_BYTES, PartWriter
from fp8debug.rundir import flush_interval_s as flush_interval_s


class Flushing:
    """Hands rows over to the writer."""

    def __init__(
        self, writer: PartWriter, recorder: Recorder, flight: FlightRecorder | None, dropping: Dropping | None = None
    ) -> None:
        """`dropping`: what to do when the disk is behind; None: wait for it."""
        self._dropping = dropping
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
        batch = self._take_batch()
        if self._dropping is None:
            self._writer.submit(batch)
        else:
            self._submit_or_drop(batch, self._dropping)

    def flush_at_close(self) -> None:
        """As `flush`; the end of the training waits for the disk in any case, so nothing is dropped."""
        if self._writer.error is not None:
            raise self._writer.error
        batch = self._take_batch()
        if self._dropping is not None:
            self._dropping.tell(batch)
        self._writer.submit(batch)

    def flush_last(self) -> None:
        """Hand over what there is when we fail: the end of the flight recorder's steps too."""
        if self._flight is not None:
            self._flight.close(failed=False)
        self._writer.write_last(self._take_batch())

    def _submit_or_drop(self, batch: Batch, dropping: Dropping) -> None:
        if not self._writer.has_room(batch):
            batch = dropping.drop_detail(batch)
        if not self._writer.has_room(batch, SPARE_BYTES):
            dropping.drop_whole(batch)
            return
        dropping.tell(batch)
        self._writer.submit_at_once(batch)

    def _take_batch(self) -> Batch:
        return self._recorder.take_batch(wait=False) if self._flight is None else self._flight.take_out()
