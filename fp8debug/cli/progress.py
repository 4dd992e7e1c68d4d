"""One line on standard error that says what takes so long; gone without a trace when it is done.

Only on a terminal, and only after a second: until then nothing but a thread that sleeps has been paid for.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TextIO

from fp8debug.errors import escape

if TYPE_CHECKING:
    import duckdb

AFTER_S = 1.0
_EVERY_S = 0.1
_BRAILLE = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII = "|/-\\"
_CLEAR = "\r\x1b[2K"


class Stage(Protocol):
    """What is being done: call it with the words for the next part of the work."""

    def __call__(self, words: str) -> None:
        """Something else is being done now."""

    def reading(self, con: duckdb.DuckDBPyConnection) -> None:
        """The queries of this connection are what takes long; their own share done is shown where DuckDB knows it."""

    def tell(self, message: str) -> None:
        """Print a message on standard error, above the line."""


@contextlib.contextmanager
def progress(words: str) -> Iterator[Stage]:
    """Within the block, what takes longer than `AFTER_S` shows a line; it is cleared before the block is left.

    Args:
        words: what is being done, such as `reading the run`.
    """
    if not _can_show(sys.stderr):
        yield _Silent()
        return
    line = _Line(sys.stderr, words)
    try:
        yield line
    finally:
        line.close()


def _can_show(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


class _Silent:
    """Where nobody looks."""

    def __call__(self, words: str) -> None:
        """Nothing."""

    def reading(self, con: duckdb.DuckDBPyConnection) -> None:
        """Nothing."""

    def tell(self, message: str) -> None:
        """Print it."""
        from fp8debug.cli.render.stream import tell

        tell(message)


class _Line:
    """The line, and the thread that draws it."""

    def __init__(self, stream: TextIO, words: str) -> None:
        self._stream = stream
        self._words = words
        self._con: duckdb.DuckDBPyConnection | None = None
        self._began_s = time.monotonic()
        self._ends = threading.Event()
        self._drawing = threading.Lock()
        self._is_drawn = False
        self._thread = threading.Thread(target=self._work, name="fp8debug-progress", daemon=True)
        self._thread.start()

    def __call__(self, words: str) -> None:
        self._words = escape(words)  # a name of a tensor, or of a file, would be obeyed by the terminal

    def reading(self, con: duckdb.DuckDBPyConnection) -> None:
        # It keeps count only when it is told to; what it would print itself is not wanted.
        con.execute("set enable_progress_bar = true; set enable_progress_bar_print = false")
        self._con = con

    def tell(self, message: str) -> None:
        from fp8debug.cli.render.stream import tell

        with self._drawing:
            self._clear()
            tell(message)

    def close(self) -> None:
        """Draw no more."""
        self._ends.set()
        self._thread.join()
        self._clear()

    def _work(self) -> None:
        pause_s = AFTER_S
        while not self._ends.wait(pause_s):
            pause_s = _EVERY_S
            with self._drawing, contextlib.suppress(OSError, ValueError):  # a terminal that has gone
                self._draw()

    def _draw(self) -> None:
        spent_s = time.monotonic() - self._began_s
        try:
            _BRAILLE.encode(self._stream.encoding or "ascii")
            frames = _BRAILLE
        except (UnicodeEncodeError, LookupError):
            frames = _ASCII
        parts = [frames[int(spent_s / _EVERY_S) % len(frames)], self._words, *self._share(), f"{spent_s:.0f} s"]
        width = os.get_terminal_size(self._stream.fileno()).columns
        self._stream.write(f"{_CLEAR}{' '.join(parts)[: max(0, width - 1)]}")
        self._stream.flush()
        self._is_drawn = True

    def _share(self) -> list[str]:
        """How much of the query under way is done."""
        if self._con is None:
            return []
        try:
            percent = self._con.query_progress()
        except Exception:  # the connection is closed, or busy with something that cannot tell
            return []
        return [f"{percent:.0f} %"] if 0 < percent <= 100 else []

    def _clear(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(_CLEAR)
                self._stream.flush()
