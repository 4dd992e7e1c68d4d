"""Parquet parts of one rank: encoded on a thread of our own, renamed into place when whole.

A kill costs at most what was not flushed yet. The rank's lock file is held while the writer lives, so a second
writer is refused and a reader can tell a dead run from a live one.
"""

from __future__ import annotations

import contextlib
import queue
import threading

import pyarrow as pa
import pyarrow.parquet as pq

from fp8debug.errors import Fp8DebugError
from fp8debug.hooks.tables import Batch
from fp8debug.parts import parse_part
from fp8debug.rundir import RunDir
from fp8debug.storage import Held, Storage

QUEUE_LENGTH = 4
_ROW_GROUP_ROWS = {"histograms": 1 << 20, "values": 256}
_ENCODINGS = {
    "histograms": {
        "segment": "DELTA_BINARY_PACKED",
        "rank": "DELTA_BINARY_PACKED",
        "seq": "DELTA_BINARY_PACKED",
        "value": "BYTE_STREAM_SPLIT",
        "count": "DELTA_BINARY_PACKED",
    }
}


class PartWriter:
    """Writes batches as `part-NNNNNN.parquet`, one file a table and flush."""

    def __init__(self, run_dir: RunDir, rank: int) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._lock: Held | None = None
        self._queue: queue.Queue[Batch | None] = queue.Queue(maxsize=QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name="fp8debug-writer", daemon=True)
        self._next_part: dict[str, int] = {}
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

    def write(self, batch: Batch) -> None:
        """Encode and rename into place, on the calling thread."""
        for name, table in batch.to_arrow().items():
            if name not in self._next_part:
                self._next_part[name] = self._first_part(name)
            part = self._run_dir.part_name(name, self._rank, self._next_part[name])
            write_part(table, name, self._run_dir.storage, part)
            self._next_part[name] += 1

    def write_last(self, batch: Batch) -> None:
        """Queue what was collected when we fail; when it is the disk that fails, try to tell why, on this thread."""
        if self.error is None:
            self.submit(batch)
        else:  # the thread has ended; what it could not write is lost
            events = Batch()
            events.rows["events"] = batch.rows["events"]
            self.write(events)

    def _first_part(self, table: str) -> int:
        """The number of the next part of a table, after those of earlier segments."""
        parts = (parse_part(name) for name in self._run_dir.storage.names(f"{table}/rank={self._rank}"))
        return max((part.last for part in parts if part is not None), default=-1) + 1

    def _work(self) -> None:
        while True:
            batch = self._queue.get()
            if batch is None:
                return
            try:
                self.write(batch)
            except Exception as error:  # a full disk must stop us, never the training
                self.error = error
                return


def write_part(table: pa.Table, name: str, storage: Storage, part: str) -> None:
    """Write rows of the table `name` as the Parquet part `part`; raises OSError."""
    encodings = _ENCODINGS.get(name)
    with storage.writing(part) as file:
        pq.write_table(
            table,
            file,
            compression="zstd",
            row_group_size=_ROW_GROUP_ROWS.get(name, 1 << 17),
            use_dictionary=["counted"] if encodings else True,
            column_encoding=encodings,
            write_statistics=["segment", "rank", "seq"] if encodings else True,
        )
