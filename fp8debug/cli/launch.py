"""`fp8debug attach -- torchrun ... train.py`: start a launcher, be invisible while it runs, say what came of it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from fp8debug.cli.ranks import ranks_lines
from fp8debug.config import CaptureOptions
from fp8debug.errors import UsageError
from fp8debug.hooks.place import Place, find_place
from fp8debug.hooks.ranks import process_name
from fp8debug.rundir import RunDir
from fp8debug.settings import LAUNCH_VARIABLE, RUN_DIR_VARIABLE, SETTINGS, as_environment
from fp8debug.storage import absolute

PARENT = "attach-"
"""How the name of a launch begins that has us as its parent: ranks leave the last lines to us."""
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class LaunchedCommand:
    """Runs a launcher whose ranks run under attach; `start()` makes ready and returns what runs it."""

    def __init__(
        self,
        command: Sequence[str],
        options: CaptureOptions,
        given: Mapping[str, object],
        *,
        config_file: str | None,
        title: str,
    ) -> None:
        self._command = list(command)
        self._options = options
        self._place: Place = find_place(options, title)
        self._environment = self._for_ranks(given, config_file)

    def start(self) -> Callable[[], int]:
        """Claim the run directory, so that no rank has to.

        Raises:
            Fp8DebugError: the directory is taken, cannot be made, or holds no run to go on in.
        """
        if not self._options.list_layers:
            moved = self._place.prepare(force=self._options.force)
            if moved is not None:
                self._say(f"fp8debug: the old run was renamed to {moved}")
        return self.run

    def run(self) -> int:
        """Run the launcher to its end; returns its exit code, or dies by the signal that ended it."""
        # From a terminal all of its foreground gets the signals, and may read from it: the launcher stays there.
        own_group = not sys.stdin.isatty()
        try:
            process = subprocess.Popen(self._command, env=self._environment, process_group=0 if own_group else None)
        except OSError as error:
            raise UsageError(f"cannot run {self._command[0]}: {error.strerror}; expected a launcher") from error
        with _forwarding_signals(process, own_group=own_group):
            code = process.wait()
        if not self._options.list_layers:
            for line in ranks_lines(RunDir(self._place.path)):
                self._say(line)
            if isinstance(self._place.path, Path):
                with contextlib.suppress(OSError):  # of a launch that recorded nothing
                    self._place.path.rmdir()
        return code if code >= 0 else _die_by(-code)

    def _for_ranks(self, given: Mapping[str, object], config_file: str | None) -> dict[str, str]:
        """Our environment, with all options in it; the directory is claimed here, once."""
        once = {SETTINGS[field].environment for field in ("out", "force")} | {RUN_DIR_VARIABLE}
        environment = {name: value for name, value in {**os.environ, **as_environment(given, config_file)}.items()
                       if name not in once}  # fmt: skip
        if self._options.seed is not None:
            environment["PYTHONHASHSEED"] = str(self._options.seed % 2**32)
        path = str(absolute(self._place.path))
        environment[SETTINGS["resume"].environment if self._place.resumes else RUN_DIR_VARIABLE] = path
        environment[LAUNCH_VARIABLE] = self._place.launch.text or f"{PARENT}{process_name(os.getpid())}"
        return environment

    def _say(self, line: str) -> None:
        if not self._options.quiet:
            with contextlib.suppress(OSError, ValueError):
                print(line, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _forwarding_signals(process: subprocess.Popen[bytes], *, own_group: bool) -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        if own_group:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, interrupt)}
    before |= {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_by(number: int) -> int:
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to reset
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
