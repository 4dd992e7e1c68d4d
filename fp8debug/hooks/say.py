"""Where lines for the person go."""

from __future__ import annotations

import contextlib
import sys


def on_stderr(line: str) -> None:
    """Print a line on standard error."""
    with contextlib.suppress(OSError, ValueError):  # a closed stderr must not cost the training anything
        print(line, file=sys.stderr, flush=True)


def nowhere(line: str) -> None:
    """Keep quiet."""
