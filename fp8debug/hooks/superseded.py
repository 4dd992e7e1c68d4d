"""Files that do not count any more, since merged ones hold their rows."""

from __future__ import annotations

from collections.abc import Sequence

from fp8debug.generations import READERS_LOCK
from fp8debug.storage import Storage


def make_readers_lock(storage: Storage) -> bool:
    """Make the file that readers share, which they never make themselves; returns whether it is new. Raises OSError."""
    return storage.path is None and storage.create(READERS_LOCK, b"")


def remove_superseded(storage: Storage, *, before: Sequence[str], now: Sequence[str], readers_show: bool = True) -> int:
    """Remove the files `now`, unless somebody reads the run; returns how many are left.

    Where readers cannot be seen, only those go that did not count `before` this merge already: a reader that has
    opened the run since the last one looks at none of them.

    Args:
        readers_show: False when those that read now may have found no file to share.

    Raises:
        OSError: a file cannot be removed.
    """
    if storage.path is not None or not readers_show:
        return _remove(storage, before, now)
    try:
        held = storage.hold(READERS_LOCK)
    except BlockingIOError:
        return len(now)
    try:
        return _remove(storage, now if held.excludes else before, now)
    finally:
        held.release()


def _remove(storage: Storage, going: Sequence[str], now: Sequence[str]) -> int:
    for name in going:
        storage.remove(name)
    return len(set(now) - set(going))
