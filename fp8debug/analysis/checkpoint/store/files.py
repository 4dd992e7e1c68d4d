"""Bytes of files, by many threads at once and with few files open."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np

from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Uint8Array

MOST_IDLE = 32
"""Files kept open while nobody reads them: a checkpoint has hundreds, and systems often allow 256."""

Stamp = tuple[int, int]
"""Size in bytes and time of the last change in ns: what tells that a file is still the one whose header was read."""


def stamp_of(file: int) -> Stamp:
    """The stamp of an open file."""
    found = os.fstat(file)
    return found.st_size, found.st_mtime_ns


class ByteFiles:
    """Files of a checkpoint, opened when bytes are asked for and closed when others are needed.

    Args:
        stamps: of those files that have to be what they were.
    """

    def __init__(self, stamps: dict[Path, Stamp] | None = None) -> None:
        self.stamps = stamps if stamps is not None else {}
        self._idle: OrderedDict[FileIO, Path] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, file: Path, first: int, last: int) -> Uint8Array:
        """Bytes `first` to `last` (exclusive) of a file.

        Raises:
            Fp8DebugError: the file cannot be read, is not what it was, or ends too early.
        """
        buffer = np.empty(last - first, np.uint8)
        try:
            with self._borrowed(file) as opened:
                if file in self.stamps and stamp_of(opened.fileno()) != self.stamps[file]:
                    raise Fp8DebugError(
                        f"{file} has changed since its header was read; wait until it is written, and start again"
                    )
                n = _fill(opened.fileno(), buffer.data, first)
        except OSError as error:
            raise Fp8DebugError(f"cannot read {file}: {error.strerror or error}") from error
        if n != last - first:
            raise Fp8DebugError(
                f"{file} ends at byte {first + n:,}, and a tensor in it should go on to {last:,}: it was cut off; "
                f"fetch or write it again"
            )
        return buffer

    def close(self) -> None:
        """Close all files that nobody reads just now; asking for bytes opens them again."""
        with self._lock:
            idle, self._idle = self._idle, OrderedDict()
        for opened in idle:
            opened.close()

    @contextmanager
    def _borrowed(self, file: Path) -> Iterator[FileIO]:
        """An open file that no other thread has, so that none closes it meanwhile."""
        opened = self._take(file) or FileIO(file)
        try:
            yield opened
        finally:
            self._give_back(opened, file)

    def _take(self, file: Path) -> FileIO | None:
        with self._lock:
            found = next((opened for opened in reversed(self._idle) if self._idle[opened] == file), None)
            if found is not None:
                del self._idle[found]
            return found

    def _give_back(self, opened: FileIO, file: Path) -> None:
        with self._lock:
            self._idle[opened] = file
            oldest = self._idle.popitem(last=False)[0] if len(self._idle) > MOST_IDLE else None
        if oldest is not None:
            oldest.close()


def _fill(file: int, buffer: memoryview, at: int) -> int:
    """Read until the buffer is full or the file ends: Linux gives at most 2 GiB a call. Returns the bytes read."""
    n = 0
    while n < len(buffer):
        got = os.preadv(file, [buffer[n:]], at + n)
        if not got:
            break
        n += got
    return n
