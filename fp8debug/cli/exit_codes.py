"""What the exit code of `fp8debug` says."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every verb; `attach` passes on the script's own instead."""

    DONE = 0
    FAILED = 1
    """It could not be done: no such run, nothing readable."""
    USAGE = 2
    """The request itself is wrong."""
    FAIL_ON = 3
    """Done, and the condition given with --fail-on holds."""
    INTERRUPTED = 130
    """Ctrl-C, or another signal while a query ran."""
