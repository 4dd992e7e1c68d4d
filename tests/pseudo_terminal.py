"""A program in a pseudo-terminal, and what a person would see there: a terminal of a few control sequences."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_SEQUENCE = re.compile(r"\x1b\[(?P<arguments>[?0-9;]*)(?P<command>[A-Za-z])")


class Screen:
    """What is shown. It knows what our programs send, and fails for anything else."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.is_alternate = False
        self.is_cursor_hidden = False
        self.has_colours = False
        self.has_wrapped = False
        """Whether a line was longer than the terminal is wide."""
        self._lines = [""] * height
        self._main = self._lines
        self._at = self._before = (0, 0)

    @property
    def text(self) -> str:
        """The lines, without blanks at their ends."""
        return "\n".join(line.rstrip() for line in self._lines).rstrip("\n")

    def resized(self, width: int, height: int) -> Screen:
        """An empty one of another size, in the same state."""
        other = Screen(width, height)
        other.is_alternate, other.is_cursor_hidden = self.is_alternate, self.is_cursor_hidden
        other.has_colours, other.has_wrapped = self.has_colours, self.has_wrapped
        if other.is_alternate:
            other._lines = [""] * height
        return other

    def feed(self, text: str) -> None:
        """Obey a piece of output that cuts no sequence."""
        place = 0
        while place < len(text):
            found = _SEQUENCE.match(text, place)
            if found is not None:
                self._obey(found["arguments"], found["command"])
                place = found.end()
            else:
                self._put(text[place])
                place += 1

    def _obey(self, arguments: str, command: str) -> None:
        row, column = self._at
        match command, arguments:
            case (("h" | "l"), "?1049"):
                self.is_alternate = command == "h"
                self._lines = [""] * self.height if self.is_alternate else self._main
                self._at, self._before = ((0, 0), self._at) if self.is_alternate else (self._before, self._at)
            case (("h" | "l"), "?25"):
                self.is_cursor_hidden = command == "l"
            case "H", ("" | "0;0" | "1;1"):
                self._at = (0, 0)
            case "K", "2":
                self._lines[row] = ""
            case "K", ("" | "0"):
                self._lines[row] = self._lines[row][:column]
            case "J", "2":
                self._lines[:] = [""] * self.height
            case "A", _:
                self._at = (max(0, row - int(arguments or 1)), column)
            case "m", _:
                codes = {int(code or 0) for code in arguments.split(";")}
                self.has_colours = self.has_colours or any(30 <= code < 50 for code in codes)
            case _:
                raise AssertionError(f"unknown sequence {arguments}{command}")

    def _put(self, character: str) -> None:
        row, column = self._at
        if character == "\r":
            self._at = (row, 0)
        elif character == "\n":
            if row == self.height - 1:
                self._lines[:] = [*self._lines[1:], ""]
            self._at = (min(row + 1, self.height - 1), column)
        else:
            assert character.isprintable(), f"control character {character!r}"
            if column == self.width:
                self.has_wrapped = True
                self._put("\r")
                self._put("\n")
                row, column = self._at
            line = self._lines[row].ljust(column)
            self._lines[row] = line[:column] + character + line[column + 1 :]
            self._at = (row, column + 1)


class Terminal:
    """A program that was started in a terminal of this size."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        *,
        width: int = 80,
        height: int = 24,
        environment: Mapping[str, str] | None = None,
        piped_stdout: bool = False,
    ) -> None:
        self.screen = Screen(width, height)
        self.out = ""
        """All that was written so far."""
        self._partial = b""
        self._fd, inner = pty.openpty()
        self.resize(width, height)
        self.process = subprocess.Popen(
            arguments,
            cwd=folder,
            stdin=inner,
            stdout=subprocess.PIPE if piped_stdout else inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "", "LINES": "", **(environment or {})},
            start_new_session=True,
        )
        os.close(inner)

    def resize(self, width: int, height: int) -> None:
        """Make the terminal larger or smaller."""
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        if (width, height) != (self.screen.width, self.screen.height):
            self.screen = self.screen.resized(width, height)

    def wait_for(self, is_there: str | Callable[[str], bool], timeout_s: float = 20.0) -> str:
        """Read until the screen shows a text, or is as it should be; returns what it shows."""
        until_s = time.monotonic() + timeout_s
        while not (is_there in self.screen.text if isinstance(is_there, str) else is_there(self.screen.text)):
            assert time.monotonic() < until_s, f"never there: {is_there!r}\n{self.screen.text}\n{self.out[-500:]!r}"
            if not self._read(0.1):
                raise AssertionError(f"it ended without {is_there!r}\n{self.out}")
        return self.screen.text

    def end(self, with_signal: signal.Signals | None = None, timeout_s: float = 20.0) -> int:
        """Read to the end and return the exit code; a signal may be sent before."""
        if with_signal is not None:
            self.process.send_signal(with_signal)
        until_s = time.monotonic() + timeout_s
        while self._read(0.1):
            assert time.monotonic() < until_s, f"it does not end:\n{self.screen.text}"
        os.close(self._fd)
        return self.process.wait(10)

    def _read(self, seconds: float) -> bool:
        """Take what comes; False at the end."""
        if not select.select([self._fd], [], [], seconds)[0]:
            return self.process.poll() is None
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # the other side is closed
            return False
        # A sequence, or a character, may be cut anywhere.
        text = (self._partial + data).decode("utf-8", "surrogateescape")
        whole = text[: text.rindex("\x1b")] if re.search(r"\x1b(\[[?0-9;]*)?$", text) else text
        whole = whole.rstrip("".join(map(chr, range(0xDC80, 0xDD00))))
        self._partial = text[len(whole) :].encode("utf-8", "surrogateescape")
        self.out += whole
        self.screen.feed(whole)
        return bool(data)
