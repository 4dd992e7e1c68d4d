"""Batches on their way from the training to the disk, as many as a stated memory holds."""

from __future__ import annotations

import threading
from collections import deque

from fp8debug.hooks.tables import Batch

_LEAST_BYTES = 1 << 14
"""What the smallest batch counts as, so that empty ones are bounded too."""


class ByteQueue:
    """A queue with one reader; what that one is busy with counts until it says `done`."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._waiting: deque[tuple[Batch | None, int]] = deque()
        self._held = 0
        self._taken = 0
        self._changed = threading.Condition()

    def has_room(self, n_bytes: int, spare: int = 0) -> bool:
        """Whether a batch of this size may come in; one always may when there is no other. `spare`: bytes on top."""
        return not self._held or self._held + max(n_bytes, _LEAST_BYTES) <= self._most + spare

    def put(self, batch: Batch | None, timeout_s: float) -> bool:
        """Add a batch as soon as there is room, None (the end) at once; False when there was none in that time."""
        n_bytes = 0 if batch is None else max(batch.n_bytes, _LEAST_BYTES)
        with self._changed:
            if batch is not None and not self._changed.wait_for(lambda: self.has_room(n_bytes), timeout_s):
                return False
            self._add(batch, n_bytes)
        return True

    def force(self, batch: Batch) -> None:
        """Add a batch that the caller has made small, room or not."""
        with self._changed:
            self._add(batch, max(batch.n_bytes, _LEAST_BYTES))

    def get(self) -> Batch | None:
        """The next batch; waits for it."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting))
            batch, self._taken = self._waiting.popleft()
        return batch

    def done(self) -> None:
        """What `get` gave last is on the disk, and its memory free."""
        with self._changed:
            self._held, self._taken = self._held - self._taken, 0
            self._changed.notify_all()

    def _add(self, batch: Batch | None, n_bytes: int) -> None:
        self._waiting.append((batch, n_bytes))
        self._held += n_bytes
        self._changed.notify_all()
