"""Lines for the person: where they go, and words in them."""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path

from fp8debug.errors import escape_lines


def on_stderr(line: str) -> None:
    """Print a line on standard error. Names in it cannot move the cursor or fake another line."""
    with contextlib.suppress(OSError, ValueError):  # a closed stderr must not cost the training anything
        print(escape_lines(line), file=sys.stderr, flush=True)


def count_layers(count: int, kind: str = "") -> str:
    """`1 emulated layer`, `2 emulated layers`."""
    return f"{count} {kind}{' ' if kind else ''}layer{'' if count == 1 else 's'}"


def error_text(error: BaseException) -> str:
    """`ZeroDivisionError: division by zero at rows.py:120`; without a place where it was never raised."""
    raised = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(raised[-1].filename).name}:{raised[-1].lineno}" if raised else ""
    return f"{type(error).__name__}: {error}{place}"


def nowhere(line: str) -> None:
    """Keep quiet."""
