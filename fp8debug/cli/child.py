"""A process of ours that is watched: what it prints goes on at once, its last lines are kept, it ends when we end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from fp8debug.cli.termination import saving_on_sigterm

KEPT_LINES = 20
GRACE_S = 10.0
"""Time that an interrupted process has to write what it has."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended."""

    code: int
    """Exit code; negative: the signal that killed it."""
    last_lines: tuple[str, ...]
    """The last ones of its standard error."""


RunChild = Callable[[Sequence[str], Mapping[str, str], Callable[[str], None]], Ended]
"""Runs a command line with variables added to the environment, and hands over what it prints, line by line."""


def run_child(command: Sequence[str], variables: Mapping[str, str], show: Callable[[str], None]) -> Ended:
    """Run it to its end. An interrupt or SIGTERM that comes to us ends it before it ends us."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        process_group=0,  # a Ctrl-C of the terminal comes to us alone, who pass it on once
    )
    assert process.stdout is not None and process.stderr is not None
    kept: deque[str] = deque(maxlen=KEPT_LINES)
    readers = [
        threading.Thread(target=_read, args=(process.stdout, [show])),
        threading.Thread(target=_read, args=(process.stderr, [show, kept.append])),
    ]
    try:
        with saving_on_sigterm(lambda: _tell(process, signal.SIGTERM)):
            for reader in readers:
                reader.start()
            process.wait()
    except BaseException:
        _stop(process)
        raise
    finally:
        for reader in readers:
            reader.join(GRACE_S)
    return Ended(process.returncode, tuple(kept))


def show_on_stderr(line: str) -> None:
    """Progress."""
    with suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _read(stream: IO[str], takers: Sequence[Callable[[str], None]]) -> None:
    with stream:
        for line in stream:
            for taker in takers:
                taker(line.rstrip("\n"))


def _stop(process: subprocess.Popen[str]) -> None:
    for number in (signal.SIGINT, signal.SIGKILL):
        _tell(process, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
            return


def _tell(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
