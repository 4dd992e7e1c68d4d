"""Lines of Transformer Engine's debug logs, as `nvdlfw_inspect` writes them; nothing else of it is needed here.

A line is `<time> - INFO - <name> <blanks> iteration=000012 <blanks> value=0.0123`: the value has four decimals always,
which tells one that was cut off. See `FileLogger.log_scalar` of nvdlfw-inspect 0.2.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, cast

from fp8debug.analysis.importing.names import GivenName, split_name
from fp8debug.errors import UsageError

FLOOR = 0.00005
"""What is printed as 0.0000 is closer to zero than this."""
EXAMPLE = (
    "2026-01-31 12:00:00,000 - INFO - decoder.layers.0.mlp.fc1_gradient_underflows%   iteration=000012   value=0.0123"
)
LONGEST_LINE = 1 << 16
_HEAD = re.compile(r"(?P<before>.{0,120}?)\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - ")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
_VALUE = re.compile(r"-?\d{1,300}\.\d{4}|-?inf|-?nan")
_STEP = re.compile(r"\d{1,18}")
_GZIP = b"\x1f\x8b"


class Number(NamedTuple):
    """One line that gives a number."""

    line: int
    """From 1."""
    time: str | None
    """Local time of the process, such as `2026-01-31 12:00:00`."""
    name: GivenName
    step: int
    text: str
    """The value as it is printed."""


class Unread(NamedTuple):
    """One line that gives none, or the end of a file that is damaged."""

    line: int
    reason: str
    text: str


def read_log(path: Path) -> Iterator[Number | Unread]:
    """The lines of a log, plain or compressed by gzip; blank ones are left out.

    Raises:
        UsageError: it cannot be read.
    """
    number = 0
    try:
        with _opened(path) as file:
            for number, (text, is_whole) in enumerate(_lines(file), 1):
                if text:
                    yield parse_line(number, text) if is_whole else Unread(number, "longer than 64 KiB", text)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        yield Unread(number + 1, f"the compressed file is cut short or damaged from here ({error})", "")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot read the log {path}: {why}; expected a file that nvdlfw_inspect wrote") from error


def parse_line(number: int, text: str) -> Number | Unread:
    """What a line that is not blank says."""
    before, equals, value = text.rpartition("value=")
    before, step_equals, step = before.rpartition("iteration=")
    if not equals or not step_equals or not before[-1:].isspace():
        return Unread(number, "no number of a tensor", text)
    step = step.strip()
    if not _VALUE.fullmatch(value.rstrip()):
        return Unread(number, "cut short: its value has not four decimals", text)
    if not _STEP.fullmatch(step):
        return Unread(number, "its iteration is no number", text)
    head = _HEAD.match(before)
    name = split_name(before[head.end() if head else 0 :].strip())
    if name is None:
        return Unread(number, "its name has no tensor of Transformer Engine (_activation_, _gradient_, ...)", text)
    time = _TIME.search(head["before"]) if head else None
    return Number(number, time[0] if time else None, name, int(step), value.rstrip())


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as plain:
        if plain.peek(2)[:2] != _GZIP:  # a pipe can be read once, so nothing is read to find out
            yield plain
            return
        with gzip.open(plain) as packed:
            yield cast("IO[bytes]", packed)


def _lines(file: IO[bytes]) -> Iterator[tuple[str, bool]]:
    """Text without its line end, and whether it is a whole line; what follows in one that is too long is skipped."""
    while raw := file.readline(LONGEST_LINE):
        is_whole = len(raw) < LONGEST_LINE or raw.endswith(b"\n")
        text = raw.decode("utf-8", "backslashreplace").strip()
        rest = raw
        while not is_whole and rest and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE)
        yield text, is_whole
