"""One watched program from its start to the last line: the hooks before it, its end told to them, the summary."""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fp8debug.cli.exit_codes import ExitCode
from fp8debug.cli.launch import PARENT
from fp8debug.cli.ranks import ranks_lines
from fp8debug.cli.render.wording import count
from fp8debug.cli.runner import hide_own_frames
from fp8debug.cli.targets import NotRunnable
from fp8debug.cli.termination import saving_on_sigterm
from fp8debug.config import CaptureOptions
from fp8debug.hooks.autoattach import AutoAttach, StopBeforeTraining
from fp8debug.hooks.place import claim_for_spawned
from fp8debug.hooks.ranks import process_name
from fp8debug.hooks.spawn import SpawnWatch
from fp8debug.rundir import RunDir
from fp8debug.settings import LAUNCH_VARIABLE
from fp8debug.storage import absolute, run_path

if TYPE_CHECKING:
    from fp8debug.hooks.session import CloseSummary

PREFIX = "fp8debug: "
NOTHING_RAN = (
    "no model with nn.Linear layers ran in this process; processes that a script starts are not watched: "
    "start each of them with attach, for example `torchrun --no-python fp8debug attach train.py`"
)
STOPPED_EARLY = "the script stopped before a model ran"


MakeWatched = Callable[[Callable[..., Any], CaptureOptions, int, str, tuple[str, ...], str], Callable[..., Any]]
"""Takes a function, options, number of processes, name of the launch, command and title; see `WatchedFunction`."""


class Watch:
    """Runs `program` with capture on. `start()` makes ready and returns what runs it.

    Of several processes that a parent of ours has started, that one counts the ranks at the end.
    """

    def __init__(
        self,
        program: Callable[[], object],
        title: str,
        options: CaptureOptions,
        *,
        command: Sequence[str] | None = None,
        has_parent: bool = False,
        watched_function: MakeWatched | None = None,
    ) -> None:
        """Args:
        watched_function: makes what runs in processes that the program starts; None: they are left alone.
        """
        self.program = program
        self.title = title
        self.options = options
        self.command = tuple(["fp8debug", *sys.argv[1:]] if command is None else command)
        self.watched_function = watched_function
        self.has_parent = has_parent or os.environ.get(LAUNCH_VARIABLE, "").startswith(PARENT)
        self.process = os.getpid()
        self.heard = ""
        """The last line that the hooks said."""
        self.epilogue: list[str] = []
        self.stream = sys.stderr
        """Kept: the script may replace sys.stderr, and its replacement is not ours to write to."""
        self.hooks = AutoAttach(options, command=self.command, script=title, say=self._hear)
        self.spawns = SpawnWatch(self._reach)
        self.spawned: list[tuple[RunDir, int]] = []
        """Where processes of the script record, and how many they are."""

    def start(self) -> Callable[[], int]:
        """Install the hooks.

        Raises:
            Fp8DebugError: the options cannot be met.
        """
        self.hooks.start()
        return self.run

    def call(self) -> int:
        """Run the program inside somebody's function: what it raises is shown by others."""
        with saving_on_sigterm(self._terminated):
            return self._run(lambda epilogue: epilogue())

    def run(self) -> int:
        """Run the program to its end; returns the exit code, or raises what the program raised."""
        with saving_on_sigterm(self._terminated):
            if self.watched_function is not None:
                self.spawns.start()
            return self._run(hide_own_frames)

    def _reach(self, function: Callable[..., Any], n_processes: int) -> Callable[..., Any]:
        """Have processes of the script record into one directory, which is theirs alone."""
        assert self.watched_function is not None
        options = self.options
        if options.resume is None:
            path = claim_for_spawned(options, self.title)
            options = replace(options, out=str(absolute(path)), force=False)
        else:
            path = run_path(options.resume)
        self.spawned.append((RunDir(path), n_processes))
        launch = f"{PARENT}{process_name(os.getpid())}-{len(self.spawned)}"
        return self.watched_function(function, options, n_processes, launch, self.command, self.title)

    def say(self, line: str) -> None:
        """Talk to the user, unless asked to be quiet."""
        if not self.options.quiet:
            self._print(line)

    def _hear(self, line: str) -> None:
        self.heard = line.removeprefix(PREFIX)
        self.say(f"{PREFIX}rank {self.hooks.rank}: {self.heard}" if self.hooks.rank else line)

    def _print(self, line: str) -> None:
        with suppress(OSError, ValueError):  # a closed stderr must not cost the training its exit code
            print(line, file=self.stream, flush=True)

    def _run(self, before_it_is_shown: Callable[[Callable[[], None]], None]) -> int:
        try:
            self.program()
        except StopBeforeTraining as stop:
            self._close("closed", stop.message)
            return self._stopped(stop)
        except NotRunnable as error:
            self._close("failed", str(error))
            self._print(f"{PREFIX}{error}")
            return error.exit_code
        except SystemExit as error:
            self._close(*_status_of_exit(error.code))
            self._say_epilogue()
            raise
        except BaseException as error:
            self._close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed", _one_line(error))
            before_it_is_shown(self._say_epilogue)
            raise
        self._close("closed", None)
        self._say_epilogue()
        return ExitCode.DONE

    def _terminated(self) -> None:
        self._close("interrupted", "SIGTERM")
        self._say_epilogue()

    def _close(self, status: str, reason: str | None) -> None:
        """End the capture and keep the last lines for later; never raises, for the script's end counts alone."""
        if os.getpid() != self.process:  # a fork that fell out of the script: the run is its parent's
            return
        try:
            summary = self.hooks.close(status, reason)
        except Exception:  # a bug of ours
            self._print(f"{PREFIX}the run was not closed in order:\n{traceback.format_exc().rstrip()}")
            return
        except KeyboardInterrupt:
            self._print(f"{PREFIX}interrupted again while closing; the parts written before are readable")
            return
        self.spawns.stop()
        of_ranks = [line for run_dir, expected in self.spawned for line in ranks_lines(run_dir, expected)]
        if summary is not None or not self.spawned:
            # Without a model the hooks say nothing, unless they had to give up.
            why = (self.heard if summary is None else "") or (STOPPED_EARLY if status != "closed" else NOTHING_RAN)
            unreached = self.spawns.unreached() if summary is None else None
            why = f"{unreached}; {why}" if unreached else why
            self.epilogue = _last_lines(summary, why_nothing=why, rank=self.hooks.rank, is_launched=self.has_parent)
        self.epilogue += of_ranks

    def _say_epilogue(self) -> None:
        for line in self.epilogue:
            self.say(line)
        self.epilogue = []

    def _stopped(self, stop: StopBeforeTraining) -> int:
        if stop.message and (stop.exit_code or not self.hooks.rank):
            line = PREFIX + stop.message.removeprefix(PREFIX)
            (self._print if stop.exit_code else self.say)(line)
        return stop.exit_code


def _last_lines(summary: CloseSummary | None, *, why_nothing: str, rank: int, is_launched: bool) -> list[str]:
    """What is said at the end: the path with its counts and the next command, or loudly that there is nothing.

    Below a launcher that we have started, the counts are left to the process that counts all ranks.
    """
    who = f"{PREFIX}rank {rank}: " if rank else PREFIX
    problems = summary.problems if summary else []
    if summary is None or not summary.n_records:
        return [f"{who}NOTHING WAS RECORDED: {'; '.join(problems) or why_nothing}"]
    lines = [f"{who}warning: {problem}" for problem in problems]
    if rank == 0 and not is_launched:
        verb, rest = ("recorded", "") if summary.is_complete else ("saw", ", not all of which were written")
        lines += [
            f"{who}{verb} {summary.n_records:,} tensors in {count(summary.n_steps, 'step')}{rest}: {summary.run_path}",
            f"{who}next: fp8debug report {shlex.quote(str(summary.run_path))}",
        ]
    return lines


def _status_of_exit(code: object) -> tuple[str, str | None]:
    """Status and reason of the run for a SystemExit with this code."""
    if code is None or code == 0:
        return "closed", None
    return "failed", f"exit code {code}" if isinstance(code, int) else str(code)


def _one_line(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
