"""Lines for the person: where they go, and words in them."""

from __future__ import annotations

import contextlib
import sys


def on_stderr(line: str) -> None:
    """Print a line on standard error."""
    with contextlib.suppress(OSError, ValueError):  # a closed stderr must not cost the training anything
        print(line, file=sys.stderr, flush=True)


def count_layers(count: int, kind: str = "") -> str:
    """`1 emulated layer`, `2 emulated layers`."""
    return f"{count} {kind}{' ' if kind else ''}layer{'' if count == 1 else 's'}"


def nowhere(line: str) -> None:
    """Keep quiet."""
