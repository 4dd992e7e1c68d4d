"""Parquet parts of one rank: encoded on a thread of our own, renamed into place when whole.

A kill costs at most what was not flushed yet. The rank's lock file is held while the writer lives, so a second
writer is refused and a reader can tell a dead run from a live one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from fp8debug.errors import Fp8DebugError
from fp8debug.hooks.tables import Batch
from fp8debug.rundir import RunDir

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
        self._lock: IO[str] | None = None
        self._queue: queue.Queue[Batch | None] = queue.Queue(maxsize=QUEUE_LENGTH)
        self._thread = threading.Thread(target=self._work, name="fp8debug-writer", daemon=True)
        self._next_part: dict[str, int] = {}
        self.error: Exception | None = None

    def start(self) -> None:
        """Take the rank's lock and start the thread.

        Raises:
            Fp8DebugError: another live process writes this rank of this run.
        """
        self._lock = _take_lock(self._run_dir.lock_path(self._rank))
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
            self._lock.close()
            self._lock = None

    def write(self, batch: Batch) -> None:
        """Encode and rename into place, on the calling thread."""
        for name, table in batch.to_arrow().items():
            if name not in self._next_part:
                self._next_part[name] = self._begin(name)
            write_part(table, name, self._run_dir.part_path(name, self._rank, self._next_part[name]))
            self._next_part[name] += 1

    def write_last(self, batch: Batch) -> None:
        """Queue what was collected when we fail; when it is the disk that fails, try to tell why, on this thread."""
        if self.error is None:
            self.submit(batch)
        else:  # the thread has ended; what it could not write is lost
            events = Batch()
            events.rows["events"] = batch.rows["events"]
            self.write(events)

    def _begin(self, name: str) -> int:
        """Make the folder of a table; returns the number of its next part, after those of earlier segments."""
        folder = self._run_dir.table_folder(name, self._rank)
        folder.parent.mkdir(exist_ok=True)  # the run directory itself is not made again when somebody has removed it
        folder.mkdir(exist_ok=True)
        return max((int(part.stem.removeprefix("part-")) for part in folder.glob("part-*.parquet")), default=-1) + 1

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


def write_part(table: pa.Table, name: str, path: Path) -> None:
    """Write one Parquet part under a temporary name, then rename it."""
    temporary = path.with_name(f".{path.name}.tmp{os.getpid()}")
    encodings = _ENCODINGS.get(name)
    try:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            row_group_size=_ROW_GROUP_ROWS.get(name, 1 << 17),
            use_dictionary=["counted"] if encodings else True,
            column_encoding=encodings,
            write_statistics=["segment", "rank", "seq"] if encodings else True,
        )
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _take_lock(path: Path) -> IO[str]:
    lock = path.open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise Fp8DebugError(
            f"{path.parent} is being written by another process; two runs never mix in one directory: "
            "give another --out"
        ) from error
    except OSError:  # a file system without locks, as Lustre often is mounted: do without
        pass
    return lock
