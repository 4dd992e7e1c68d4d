"""What the stream that is written to can show: colours, block characters, how many columns."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TextIO

from fp8debug.cli.render.sparkline import BLOCKS
from fp8debug.errors import escape_lines

PIPE_WIDTH = 80
MAX_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Looks:
    """How text for a stream is to be made."""

    width: int = PIPE_WIDTH
    colour: bool = False
    ascii_only: bool = False

    def bold(self, text: str) -> str:
        """Headings."""
        return self._code("1", text)

    def dim(self, text: str) -> str:
        """What may be skipped."""
        return self._code("2", text)

    def red(self, text: str) -> str:
        """What is wrong."""
        return self._code("31", text)

    def yellow(self, text: str) -> str:
        """What deserves a look."""
        return self._code("33", text)

    def green(self, text: str) -> str:
        """What is fine."""
        return self._code("32", text)

    def _code(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text


def looks_of(stream: TextIO) -> Looks:
    """Colours only on a terminal without NO_COLOR; a pipe is always 80 columns wide."""
    terminal = stream.isatty()
    width = min(MAX_WIDTH, shutil.get_terminal_size((PIPE_WIDTH, 24)).columns) if terminal else PIPE_WIDTH
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Looks(width=max(60, width), colour=colour, ascii_only=not _can_show(BLOCKS, stream.encoding))


def write_stdout(text: str) -> None:
    """Print data; what the encoding of stdout lacks is written as an escape rather than lost or raised."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text if _can_show(text, encoding) else text.encode(encoding, "backslashreplace").decode(encoding))


def tell(message: str) -> None:
    """Print a message on standard error. Lines stay lines; what else a terminal would obey is shown as an escape."""
    print(f"fp8debug: {escape_lines(message)}", file=sys.stderr)


def _can_show(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
