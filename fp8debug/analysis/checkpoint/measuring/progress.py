"""How far the pass is."""

from __future__ import annotations

import threading


class Stopped(BaseException):
    """The pass was given up while a tensor was being read."""


class Progress:
    """Bytes that are done, counted by several threads.

    Args:
        n_bytes: of all that will be read.
        what: is read.
    """

    def __init__(self, n_bytes: int, what: str = "tensors") -> None:
        self._what = what
        self._n_bytes = n_bytes
        self._done = 0
        self._lock = threading.Lock()
        self._is_stopped = False

    def add(self, n_bytes: int) -> None:
        """So many bytes more are done.

        Raises:
            Stopped: nobody waits for the result any more.
        """
        if self._is_stopped:
            raise Stopped
        with self._lock:
            self._done += n_bytes

    def stop(self) -> None:
        """Let whoever is still counting end."""
        self._is_stopped = True

    def words(self) -> str:
        """`reading tensors: 43 % of 12.3 GB`."""
        share = 100 if self._n_bytes == 0 else 100 * self._done // self._n_bytes
        return f"reading {self._what}: {share} % of {_size(self._n_bytes)}"


def _size(n_bytes: int) -> str:
    size, unit = float(n_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
