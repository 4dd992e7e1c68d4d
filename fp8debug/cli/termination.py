"""SIGTERM while somebody's program runs: save what there is, then do what would have happened."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

GRACE_S = 10.0
"""Longest time the saving may take; schedulers send SIGKILL about 30 s after SIGTERM."""


@contextlib.contextmanager
def saving_on_sigterm(save: Callable[[], None]) -> Iterator[None]:
    """Inside the block, SIGTERM calls `save` and then what stood there before: a handler, or the default death.

    Nothing is installed where SIGTERM is ignored or handled outside Python, and a handler that the program installs
    itself replaces ours. Forked children are as if we had never been there.
    """
    before: Any = signal.getsignal(signal.SIGTERM)
    if before is signal.SIG_IGN or before is None:
        yield
        return

    def handler(number: int, frame: FrameType | None) -> None:
        _within_grace(save)
        signal.signal(signal.SIGTERM, before)
        if callable(before):
            before(number, frame)
        else:
            os.kill(os.getpid(), number)

    def restore() -> None:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, before)

    signal.signal(signal.SIGTERM, handler)
    # A child that hangs in native code would never get to run a Python handler and so could not be terminated.
    os.register_at_fork(after_in_child=restore)
    try:
        yield
    finally:
        restore()


def _within_grace(save: Callable[[], None]) -> None:
    """Run `save` in a thread: the signal may have come while this one holds a lock that `save` needs."""
    thread = threading.Thread(target=save, name="fp8debug-sigterm", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads to be had
        save()
    else:
        thread.join(GRACE_S)
