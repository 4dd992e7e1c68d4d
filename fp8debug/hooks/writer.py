"""Parquet parts of one rank: encoded on a thread of our own, renamed into place when whole.

A kill costs at most what was not flushed yet. The rank's lock file is held while the writer lives, so a second
writer is refused and a reader can tell a dead run from a live one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial

from fp8debug.errors import Fp8DebugError
from fp8debug.generations import read_generation
from fp8debug.hooks.byte_queue import ByteQueue
from fp8debug.hooks.encoding import write_part
from fp8debug.hooks.errands import Errands
from fp8debug.hooks.own_parts import OwnParts
from fp8debug.hooks.superseded import make_readers_lock
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.tiers import FAN_IN
from fp8debug.hooks.used_bytes import UsedBytes
from fp8debug.parts import parse_part
from fp8debug.rundir import RunDir
from fp8debug.storage import Held

QUEUE_BYTES = 32 << 20
"""Memory of the batches on their way to the disk; with one that is larger nothing else is."""
SPARE_BYTES = QUEUE_BYTES // 4
"""More that batches may take of which the details were dropped."""
PATIENCE_S = 1.0
"""Waiting that is longer is said while it lasts."""
HEARTBEAT_S = 10.0
"""How often a lock that has to be is renewed, if that is due."""


class PartWriter:
    """Writes batches as `part-NNNNNN.parquet`, one file a table and flush."""

    def __init__(
        self, run_dir: RunDir, rank: int, errands: Errands | None = None, most_bytes: int | None = None
    ) -> None:
        """`most_bytes`: of this rank's parts; those that would be beyond are not written, but for events."""
        self._run_dir = run_dir
        self._errands = errands or Errands(run_dir.storage)
        self._rank = rank
        self._lock: Held | None = None
        self._queue = ByteQueue(QUEUE_BYTES)
        self._thread = threading.Thread(target=self._work, name="fp8debug-writer", daemon=True)
        self._next_part: dict[str, int] = {}
        self._own_parts = OwnParts(run_dir, rank)
        self.used = UsedBytes(run_dir.storage, rank, most_bytes)
        """What the parts take, where there is a limit."""
        self._said_waiting = False
        self.waited_s = 0.0
        """How long the training has waited for the disk."""
        self.tell: Callable[[str], None] = lambda text: None
        """Told, once each, that the training waits for the disk and that the end does."""
        self.last_words: Callable[[], Batch] = Batch
        """What is still to be said when all else is written; called on the writer's thread."""
        self.error: Exception | None = None

    def start(self) -> None:
        """Take the rank's lock and start the thread.

        Raises:
            Fp8DebugError: another live process writes this rank of this run, or an object store refuses.
        """
        try:
            self._lock = self._run_dir.storage.hold(self._run_dir.lock_name(self._rank))
        except BlockingIOError as error:
            raise Fp8DebugError(
                f"{self._run_dir.path} is being written by another process; two runs never mix in one directory: "
                f"give another --out{_detail(error)}"
            ) from error
        except OSError as error:
            if self._errands.is_far:
                raise Fp8DebugError(f"{self._run_dir.path} cannot be written to: {error}") from error
            raise
        self._errands.every(HEARTBEAT_S, self._lock.refresh)
        make_readers_lock(self._run_dir.storage)
        with contextlib.suppress(OSError):
            self.used.measure()
        self._thread.start()

    @property
    def excludes(self) -> bool:
        """Whether a second writer would be refused."""
        return self._lock is None or self._lock.excludes

    def submit(self, batch: Batch) -> None:
        """Queue a batch; waits while the disk is QUEUE_BYTES behind. After an error it is dropped."""
        began_s = time.monotonic()
        while self.error is None and self._thread.is_alive():
            if self._queue.put(batch, timeout_s=0.2):
                break
            if not self._said_waiting and time.monotonic() - began_s > PATIENCE_S:
                self._said_waiting = True
                self.tell("the disk is slower than the training, which waits for it (--on-full drop would not)")
        self.waited_s += time.monotonic() - began_s

    def has_room(self, batch: Batch, spare: int = 0) -> bool:
        """Whether `submit` would not wait, with `spare` bytes more to fill."""
        return self._queue.has_room(batch.n_bytes, spare)

    def submit_at_once(self, batch: Batch) -> None:
        """Queue a batch that was made small, room or not."""
        self._queue.force(batch)

    def close(self) -> None:
        """Write what is queued, end the thread, release the lock."""
        if self._thread.is_alive():
            self._queue.put(None, timeout_s=0)
            self._thread.join(PATIENCE_S)
            if self._thread.is_alive():
                self.tell("the training has ended; what was recorded is still being written")
        self._thread.join()
        self.release()

    def release(self) -> None:
        """Give the lock back without writing anything more."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def write(self, batch: Batch) -> list[str]:
        """Encode and rename into place, on the calling thread; returns the tables that had rows."""
        if self._lock is not None:
            self._lock.refresh()
        written = []
        for name, table in batch.take_tables():
            if name not in self._next_part:
                self._next_part[name] = self._first_part(name)
            part = self._run_dir.part_name(name, self._rank, self._next_part[name])
            if not self.used.is_limited(name):
                write_part(table, name, self._run_dir.storage, part)
            elif not self.used.write(table, name, part):
                continue
            self._next_part[name] += 1
            written.append(name)
        return written

    def write_last(self, batch: Batch) -> None:
        """Queue what was collected when we fail; when it is the disk that fails, try to tell why, on this thread."""
        if self.error is None:
            self.submit(batch)
        else:  # the thread has ended; what it could not write is lost
            events = Batch()
            events.rows["events"] = batch.rows["events"]
            self._errands.later(partial(self.write, events))

    def _first_part(self, table: str) -> int:
        """The number of the next part of a table, after those of earlier segments, merged or not."""
        parts = [parse_part(name) for name in self._run_dir.storage.names(f"{table}/rank={self._rank}")]
        # Read after the listing: parts that were merged before it are in there.
        merged = read_generation(self._run_dir.storage).last_flush(table, self._rank)
        return max([merged, *(part.last for part in parts if part is not None)]) + 1

    def _work(self) -> None:
        while True:
            batch = self._queue.get()
            try:
                written = self.write(self.last_words() if batch is None else batch)
            except BaseException as error:  # a full disk must stop us, never the training
                self.error = error if isinstance(error, Exception) else RuntimeError(f"the writer ended: {error!r}")
                return
            if batch is None:
                self._guarded_merge(lambda: self._own_parts.merge_at_close(self._next_part))
                return
            batch = None  # its memory is free before there is room for another
            self._queue.done()
            for name in written:
                if self._next_part[name] % FAN_IN == 0:
                    self._guarded_merge(partial(self._own_parts.merge_due, name))

    def _guarded_merge(self, merge: Callable[[], None]) -> None:
        """Nothing is lost when it fails, as on a disk that is nearly full: it is tried again some flushes later."""
        if self.used.may_merge:
            with contextlib.suppress(Exception):
                merge()
            with contextlib.suppress(OSError):
                self.used.measure()


def _detail(error: OSError) -> str:
    """Who holds it, where the store can tell."""
    return "" if error.errno else f" ({error})"
