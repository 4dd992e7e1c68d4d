"""Look at a run again and again, and show it on a screen or as lines."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from fp8debug.errors import Fp8DebugError

if TYPE_CHECKING:
    from rich.live import Live

    from fp8debug.analysis.live import Follower, Snapshot, Waiting

_BLINK_S = 0.1
"""How soon a screen follows a terminal that is made larger or smaller."""


class _View(Protocol):
    """Where what was seen is shown."""

    def show(self, seen: Snapshot | Waiting, run_path: str) -> None:
        """Show what a look gave."""

    def fail(self, error: Fp8DebugError) -> None:
        """Say that a look failed; the next one may succeed."""

    def pause(self, seconds: float) -> None:
        """Let time pass."""


def follow(follower: Follower, interval_s: float) -> None:
    """Show a run until it has ended.

    Raises:
        Fp8DebugError: the first look at it failed.
        KeyboardInterrupt: the person leaves.
    """
    from fp8debug.cli.render.watch_lines import end_lines

    seen: Snapshot | Waiting | None = None
    began_s = time.monotonic()
    with view() as shown:
        while not (ended := _ended(seen)):
            if seen is not None:
                shown.pause(max(0.0, interval_s - (time.monotonic() - began_s)))
            began_s = time.monotonic()
            try:
                seen = follower.look()
                shown.show(seen, _path_of(seen))
            except Fp8DebugError as error:
                if seen is None:
                    raise
                shown.fail(error)
    _print(end_lines(ended, _path_of(ended)))


def show_once(run_dir: str | None, top: int) -> None:
    """Print what is known now.

    Raises:
        Fp8DebugError: no such run.
    """
    from fp8debug.analysis.live import Follower
    from fp8debug.cli.render.stream import looks_of, write_stdout
    from fp8debug.cli.render.watch import LEAVE, screen_lines
    from fp8debug.rundir import find_run

    found = find_run(run_dir)
    found.read_manifest()
    with Follower(str(found.path), top=top) as follower:
        seen = follower.look()
    lines = screen_lines(seen, looks_of(sys.stdout), 10_000, run_path=run_dir or _path_of(seen))
    write_stdout("\n".join(line for line in lines if LEAVE not in line).rstrip() + "\n")


def _ended(seen: Snapshot | Waiting | None) -> Snapshot | None:
    """What was seen, when that was the end."""
    from fp8debug.analysis.live import Snapshot

    return seen if isinstance(seen, Snapshot) and seen.has_ended else None


def _path_of(seen: Snapshot | Waiting) -> str:
    from fp8debug.analysis.live import Waiting
    from fp8debug.cli.render.wording import shown_path
    from fp8debug.storage import run_path

    return "" if isinstance(seen, Waiting) else shown_path(run_path(seen.path))


def _print(lines: Iterable[str]) -> None:
    from fp8debug.cli.render.stream import write_stdout

    for line in lines:
        write_stdout(line + "\n")
    sys.stdout.flush()


@contextlib.contextmanager
def view() -> Iterator[_View]:
    """A screen on a terminal that has one, else lines."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield _Lines()
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stdout, force_terminal=True, highlight=False, legacy_windows=False)
    with Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        yield _Screen(live)


class _Lines:
    """For a pipe."""

    def __init__(self) -> None:
        from fp8debug.cli.render.watch_lines import WatchLines

        self._lines = WatchLines()

    def show(self, seen: Snapshot | Waiting, run_path: str) -> None:
        """Print what is new."""
        _print(self._lines.of(seen, run_path))

    def fail(self, error: Fp8DebugError) -> None:
        """Print it, once."""
        _print(self._lines.note(str(error)))

    def pause(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)


class _Screen:
    """For a terminal: its other screen, which goes when the block ends."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._seen: Snapshot | Waiting | None = None
        self._run_path = ""
        self._note = ""
        self._size = os.terminal_size((0, 0))

    def show(self, seen: Snapshot | Waiting, run_path: str) -> None:
        """Draw it."""
        self._seen, self._run_path, self._note = seen, run_path, ""
        self._draw()

    def fail(self, error: Fp8DebugError) -> None:
        """Draw the same with what went wrong."""
        self._note = f"{error}; trying again"
        self._draw()

    def pause(self, seconds: float) -> None:
        """Sleep, and draw anew for a terminal of another size."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _BLINK_S))
            if shutil.get_terminal_size() != self._size:
                self._draw()

    def _draw(self) -> None:
        from rich.text import Text

        from fp8debug.cli.render.stream import looks_of
        from fp8debug.cli.render.watch import screen_lines

        assert self._seen is not None
        self._size = shutil.get_terminal_size()
        looks = looks_of(sys.stdout)
        lines = screen_lines(self._seen, looks, self._size.lines, run_path=self._run_path, note=self._note)
        encoding = sys.stdout.encoding or "utf-8"
        text = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
        self._live.update(Text.from_ansi(text, no_wrap=True, overflow="crop"), refresh=True)
