"""Ctrl-C while a query runs: Python learns of it only when DuckDB comes back, so DuckDB is told to. Other signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_DONE = b"\0"


@contextlib.contextmanager
def interruptible(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Within the block a SIGINT ends the query that `con` runs, and is raised as KeyboardInterrupt.

    In another thread than the main one, where signals do not arrive, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = threading.Event()
    try:
        with _watched(con, interrupted):
            yield
    except Exception:
        if interrupted.is_set():  # DuckDB has errors of its own for it
            raise KeyboardInterrupt from None
        raise


@contextlib.contextmanager
def _watched(con: duckdb.DuckDBPyConnection, interrupted: threading.Event) -> Iterator[None]:
    """A thread that is woken by every signal."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    waiting = threading.Thread(target=_wait, args=(con, reader, interrupted), daemon=True)
    waiting.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, _DONE)
        waiting.join()
        os.close(writer)
        os.close(reader)


def _wait(con: duckdb.DuckDBPyConnection, reader: int, interrupted: threading.Event) -> None:
    while (number := os.read(reader, 1)) != _DONE:
        if number[0] == signal.SIGINT:
            interrupted.set()
            con.interrupt()


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as an exit does: a terminal is given back as it was, no half file is left.

    One that is ignored, as `nohup` has it, stays ignored. In another thread than the main one nothing changes.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    wanted = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in wanted} if is_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
