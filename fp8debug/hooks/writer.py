"""Parquet parts of one rank: encoded on a thread of our own, renamed into place when whole.

A kill costs at most what was not flushed yet. The rank's lock file is held while the writer lives, so a second
writer is refused and a reader can tell a dead run from a live one.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial

from fp8debug.errors import Fp8DebugError
from fp8debug.generations import read_generation
from fp8debug.hooks.encoding import write_part
from fp8debug.hooks.own_parts import OwnParts
from fp8debug.hooks.superseded import make_readers_lock
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.tiers import FAN_IN
from fp8debug.parts import parse_part
from fp8debug.rundir import RunDir
from fp8debug.storage import Held

QUEUE_LENGTH = 4


class PartWriter:
    """Writes batches as `part-NNNNNN.parquet`, one file a table and flush."""

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._lock: Held | None = None
        self._queue: queue.Queue[Batch | None] = queue.Queue(maxsize=QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name="fp8debug-writer", daemon=True)
        self._next_part: dict[str, int] = {}
        self._own_parts = OwnParts(run_dir, rank)
        self.error: Exception | None = None

    def start(self) -> None:
        """Take the rank's lock and start the thread.

        Raises:
            Fp8DebugError: another live process writes this rank of this run.
        """
        try:
            self._lock = self._run_dir.storage.hold(self._run_dir.lock_name(self._rank))
        except BlockingIOError as error:
            raise Fp8DebugError(
                f"{self._run_dir.path} is being written by another process; two runs never mix in one directory: "
                "give another --out"
            ) from error
        make_readers_lock(self._run_dir.storage)
        self._thread.start()

    def submit(self, batch: Batch) -> None:
        """Queue a batch; waits when the disk is more than a few batches behind. After an error it is dropped."""
        while self.error is None and self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._queue.put(batch, timeout=0.2)
                return

    def close(self) -> None:
        """Write what is queued, end the thread, release the lock."""
        while self._thread.is_alive():
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=0.2)
                break
        self._thread.join()
        self.release()

    def release(self) -> None:
        """Give the lock back without writing anything more."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write(self, batch: Batch) -> list[str]:
        """Encode and rename into place, on the calling thread; returns the tables that had rows."""
        tables = batch.to_arrow()
        for name, table in tables.items():
            if name not in self._next_part:
                self._next_part[name] = self._first_part(name)
            part = self._run_dir.part_name(name, self._rank, self._next_part[name])
            write_part(table, name, self._run_dir.storage, part)
            self._next_part[name] += 1
        return list(tables)

    def write_last(self, batch: Batch) -> None:
        """Queue what was collected when we fail; when it is the disk that fails, try to tell why, on this thread."""
        if self.error is None:
            self.submit(batch)
        else:  # the thread has ended; what it could not write is lost
            events = Batch()
            events.rows["events"] = batch.rows["events"]
            self.write(events)

    def _first_part(self, table: str) -> int:
        """The number of the next part of a table, after those of earlier segments, merged or not."""
        parts = [parse_part(name) for name in self._run_dir.storage.names(f"{table}/rank={self._rank}")]
        # Read after the listing: parts that were merged before it are in there.
        merged = read_generation(self._run_dir.storage).last_flush(table, self._rank)
        return max([merged, *(part.last for part in parts if part is not None)]) + 1

    def _work(self) -> None:
        while True:
            batch = self._queue.get()
            if batch is None:
                self._guarded_merge(lambda: self._own_parts.merge_at_close(self._next_part))
                return
            try:
                written = self.write(batch)
            except Exception as error:  # a full disk must stop us, never the training
                self.error = error
                return
            for name in written:
                if self._next_part[name] % FAN_IN == 0:
                    self._guarded_merge(partial(self._own_parts.merge_due, name))

    def _guarded_merge(self, merge: Callable[[], None]) -> None:
        """Nothing is lost when it fails, as on a disk that is nearly full: it is tried again some flushes later."""
        with contextlib.suppress(Exception):
            merge()
