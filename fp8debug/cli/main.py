"""The `fp8debug` command: its verbs, its error boundary, its exit codes."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from fp8debug import __version__
from fp8debug.cli.bare_options import with_empty_values
from fp8debug.cli.exit_codes import ExitCode
from fp8debug.cli.interruption import ending_on_signals
from fp8debug.cli.script_first import options_first
from fp8debug.errors import Fp8DebugError

Program = Callable[[], int]
"""Runs somebody's script and returns the exit code; what the script raises comes out."""
Launch = Callable[[], Program]
"""Makes everything ready for a `Program`; raises Fp8DebugError for what the user can mend."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One command: `fp8debug.cli.<module>` holds a function of the module's name, whose docstring is the help."""

    name: str
    """One word, or two: then the first may be a verb of its own."""
    module: str
    summary: str
    """First line of that docstring, so that `fp8debug --help` need not import the module."""
    hidden: bool = False
    takes_script: bool = False
    """Everything after the first argument belongs to a script and is not looked at."""
    options_after_script: bool = False
    """Options may also stand directly after the script."""
    bare_options: tuple[str, ...] = ()
    """Options whose value may be left out."""


VERBS = (
    Verb("attach", "attach", "Run a training script and record its tensors.", takes_script=True),
    Verb("watch", "watch", "Follow a run while it is written."),
    Verb("report", "report", "Say which layers would suffer in FP8, where, and why.", bare_options=("--html",)),
    Verb("show", "show", "Look at one tensor closely: values, formats, scales, history."),
    Verb("whatif", "whatif", "Say what other scaling recipes would do to the tensors of a run."),
    Verb("plan", "plan", "Write what to change, in the format of your framework."),
    Verb(
        "verify",
        "verify",
        "Prove by emulated trainings that a fallback plan helps.",
        takes_script=True,
        options_after_script=True,
    ),
    Verb(
        "compare", "compare", "Say if a run is worse than its baseline, since when and why.", bare_options=("--html",)
    ),
    Verb("rules", "rules", "List the rules that findings come from, and their numbers."),
    Verb("sql", "sql", "Ask a run anything in SQL, read-only."),
    Verb(
        "checkpoint",
        "checkpoint",
        "Say how a checkpoint's weights and scales are read, and what is wrong with them.",
        bare_options=("--html",),
    ),
    Verb("checkpoint quantize", "checkpoint_quantize", "Write a checkpoint in FP8, in the convention of any writer."),
    Verb("export", "export", "Write the numbers of a run for other tools."),
    Verb("import", "import_logs", "Make a run of the logs of another tool, for reports and SQL."),
    Verb("control", "control", "Change what a running capture records."),
    Verb("bundle", "bundle", "Pack what a bug report needs of a run into a small archive."),
    Verb("compact", "compact", "Merge the files of a finished run into few."),
    Verb("runs", "runs", "List the recorded runs, newest last."),
    Verb("doctor", "doctor", "Say what would be recorded of a script, and what not.", takes_script=True),
    Verb("run", "attach", "The same as attach.", hidden=True, takes_script=True),
)

_NOT_REACHED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP)
"""What even the question whether a file exists may be answered with."""
_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
"""What writing to a stream may be answered with."""
_BY_SIGNAL = "Query interrupted"
"""What DuckDB makes of Ctrl-C and the like while it runs a query."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: this process's) and return its exit code.

    Only `Fp8DebugError`, and a path or a stream that the system refuses, is turned into a message; anything else is a
    bug and shows its traceback.
    """
    arguments = _with_verbs_whole(sys.argv[1:] if argv is None else argv)
    launches: list[Launch] = []
    try:
        code = _invoke(arguments, launches)
        programs = [launch() for launch in launches]
        if not programs:
            sys.stdout.flush()  # at the end of the process nobody could be told that it failed
    except Fp8DebugError as error:
        return _told(error)
    except OSError as error:
        return _refused(error)
    # A script runs out here: no parser around it that turns a KeyboardInterrupt into an exit code, and an
    # Fp8DebugError of its own is the script's to show.
    for program in programs:
        code = program()
    return code


def _told(error: Fp8DebugError) -> int:
    from fp8debug.cli.render.stream import tell

    tell(str(error))
    return error.exit_code


def _refused(error: OSError) -> int:
    if error.filename is not None and error.errno in _NOT_REACHED:
        return _told(
            Fp8DebugError(f"cannot use {error.filename}: {error.strerror}; give another path, or make this one usable")
        )
    if error.filename is not None or error.errno not in _NOT_WRITTEN:
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer is lost anyway
    if error.errno == errno.EPIPE:  # who read it has read enough
        return ExitCode.FAILED
    return _told(Fp8DebugError(f"cannot write what was asked for: {error.strerror}; make room, or write it elsewhere"))


def _invoke(arguments: list[str], launches: list[Launch]) -> int:
    _open_closed_streams()
    command = typer.main.get_command(build_app(_verb_of(arguments)))
    runs_script = any(verb.takes_script for verb in VERBS if verb.name == _verb_of(arguments))
    try:
        with contextlib.nullcontext() if runs_script else ending_on_signals():
            command.main(_arranged(arguments, command), prog_name="fp8debug", obj=launches)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else ExitCode.DONE
    except RuntimeError as error:
        if str(error) != _BY_SIGNAL:
            raise
        return ExitCode.INTERRUPTED
    return ExitCode.DONE


def _open_closed_streams() -> None:
    """Python has no object for a stream that was closed before it began."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115


def _arranged(arguments: list[str], command: Any) -> list[str]:
    verb = next((verb for verb in VERBS if verb.name == _verb_of(arguments)), None)
    if verb is None:
        return arguments
    at = arguments.index(verb.name) + 1
    arguments = [*arguments[:at], *with_empty_values(arguments[at:], verb.bare_options)]
    if not verb.options_after_script:
        return arguments
    options = [option for option in command.commands[verb.name].params if option.param_type_name == "option"]
    takes_value = {name: not option.is_flag for option in options for name in option.opts}
    return [*arguments[:at], *options_first(arguments[at:], takes_value)]


def build_app(verb: str | None = None) -> typer.Typer:
    """The whole command line, with only `verb` imported; the other verbs are known by name and summary."""
    # Plain help: the boxes of rich cost as much time as all the rest of `--help`.
    app = typer.Typer(
        name="fp8debug", add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, help=_HELP
    )
    app.callback(invoke_without_command=True)(_root)
    for known in VERBS:
        function = _load(known) if known.name == verb else _not_loaded
        settings = {"allow_interspersed_args": False} if known.takes_script else {}
        text = None if known.name == verb else known.summary
        # As short help a summary is shown whole, over two lines if need be.
        app.command(known.name, help=text, short_help=known.summary, hidden=known.hidden, context_settings=settings)(
            function
        )
    return app


_HELP = """Record a training's tensors, then see which layers would suffer in FP8, at which step, and why.

Two commands: `fp8debug attach train.py`, then `fp8debug report`.
"""


def _root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        typer.echo(f"fp8debug {__version__}")
        raise typer.Exit(ExitCode.DONE)
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(ExitCode.USAGE)


def _with_verbs_whole(arguments: Sequence[str]) -> list[str]:
    """The arguments, a verb of two words as one of them."""
    words = list(arguments)
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    two = " ".join(words[at : at + 2])
    return [*words[:at], two, *words[at + 2 :]] if any(verb.name == two for verb in VERBS) else words


def _verb_of(arguments: Sequence[str]) -> str | None:
    return next((word for word in arguments if not word.startswith("-")), None)


def _load(verb: Verb) -> Callable[..., Any]:
    module = importlib.import_module(f"fp8debug.cli.{verb.module}")
    function: Callable[..., Any] = getattr(module, verb.module)
    return function


def _not_loaded() -> None:
    raise AssertionError("only the verb that was asked for is invoked, and that one is loaded")
