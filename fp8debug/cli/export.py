"""`fp8debug export`: the numbers of a run in other tools."""

from __future__ import annotations

import contextlib
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fp8debug.cli.means import MemoryLimit
from fp8debug.cli.narrowing import Layers, Tensors

if TYPE_CHECKING:
    from fp8debug.analysis.export import Narrowing
    from fp8debug.analysis.run import Run
    from fp8debug.cli.sink import Sink
    from fp8debug.rundir import RunDir


class Target(StrEnum):
    """What is written for."""

    tensorboard = "tensorboard"
    wandb_offline = "wandb-offline"
    csv = "csv"
    parquet = "parquet"
    jsonl = "jsonl"
    openmetrics = "openmetrics"


_FOLDERS = {Target.tensorboard: "tensorboard", Target.wandb_offline: "wandb"}
"""Targets that are folders, and how theirs ends when nobody names it."""


def export(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN_DIR", help="Run directory. [the latest in fp8debug-runs]")
    ] = None,
    to: Annotated[Target | None, typer.Option("--to", help="What to write for.", show_default=False)] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File to write, or folder for tensorboard and wandb-offline. [standard output; RUN-tensorboard, "
            "RUN-wandb]",
        ),
    ] = None,
    view: Annotated[
        str | None,
        typer.Option(
            "--view", metavar="NAME", help="For csv, parquet and jsonl: the view to write, of `sql`. [operand_steps]"
        ),
    ] = None,
    layer: Layers = None,
    tensor: Tensors = None,
    steps: Annotated[
        str | None, typer.Option("--steps", metavar="RANGES", help="These steps only, such as 0-9,100,200-. [all]")
    ] = None,
    recipe: Annotated[
        list[str] | None, typer.Option("--recipe", metavar="RECIPE", help="This recipe only; repeatable. [all]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier export.")] = False,
    memory_limit: MemoryLimit = None,
) -> None:
    """Write the numbers of a run for other tools.

    tensorboard, wandb-offline: loss, gradient norm and learning rate, and of each operand amax, underflow, overflow,
    SQNR and scale gap, step by step; histograms for tensorboard. openmetrics: the newest of them, for Prometheus. csv,
    parquet, jsonl: the rows of a view. It works while the training is still writing.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage.
    """
    from fp8debug.cli.collector import paused_collector
    from fp8debug.errors import UsageError
    from fp8debug.rundir import find_run

    if to is None:
        raise UsageError(f"--to is missing: expected one of {', '.join(Target)}")
    if view is not None and to in (*_FOLDERS, Target.openmetrics):
        raise UsageError(f"--view does not go with --to {to}; expected --to csv, parquet or jsonl")
    wanted = _narrowing(layer, tensor, steps, recipe)
    found = find_run(run_dir)
    if to in _FOLDERS:
        folder = Path(output or f"{found.path.name}-{_FOLDERS[to]}")
        _check_folder(folder, found)
        with paused_collector():
            _write_folder(found, to, folder, wanted, memory_limit, force=force)
        return
    sink = _sink(to, output, found, force=force)
    with paused_collector():
        _write_file(found, to, sink, view, wanted, memory_limit)


def _narrowing(layer: str | None, tensor: str | None, steps: str | None, recipes: list[str] | None) -> Narrowing:
    from fp8debug.analysis.export import Narrowing
    from fp8debug.cli.narrowing import step_ranges, tensors_named

    return Narrowing(layer or "", tensors_named(tensor) or (), step_ranges(steps) or (), tuple(recipes or ()))


def _sink(to: Target, output: str | None, run: RunDir, *, force: bool) -> Sink:
    from fp8debug.cli.sink import Sink, check_target

    if to is not Target.openmetrics:
        return Sink.from_options(to, output, force=force, outside=run)
    path = None if output is None else Path(output)
    if path is not None:
        check_target(path, force=force, outside=run)
    return Sink(to, path)


def _check_folder(folder: Path, run: RunDir) -> None:
    from fp8debug.errors import UsageError
    from fp8debug.storage import resolved

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"-o {folder} is a file; expected a folder")
    if resolved(run.path) in (folder.resolve(), *folder.resolve().parents):
        raise UsageError(f"-o {folder} is inside the run directory, which is only read; give a name outside it")


def _write_folder(
    found: RunDir, to: Target, folder: Path, wanted: Narrowing, memory_limit: str | None, *, force: bool
) -> None:
    import shlex

    from fp8debug.analysis.export import write_tensorboard, write_wandb
    from fp8debug.analysis.run import open_run
    from fp8debug.cli.answer import tell_what_is_missing
    from fp8debug.cli.interruption import interruptible
    from fp8debug.cli.progress import progress
    from fp8debug.cli.render.stream import write_stdout
    from fp8debug.errors import escape

    write = write_tensorboard if to is Target.tensorboard else write_wandb
    with open_run(found.path, memory_limit=memory_limit) as run:
        _check_recorded(run)
        tell_what_is_missing(run)
        with interruptible(run.prepare("")), progress("writing curves and histograms") as stage:
            stage.reading(run.prepare(""))
            made = write(run, folder, wanted, force=force)
    next_step = f"tensorboard --logdir {shlex.quote(str(folder))}"
    if to is Target.wandb_offline:
        next_step = f"wandb sync {shlex.quote(str(made))}"
    write_stdout(f"Wrote {escape(str(made))}\nNext: {escape(next_step)}\n")


def _write_file(
    found: RunDir, to: Target, sink: Sink, view: str | None, wanted: Narrowing, memory_limit: str | None
) -> None:
    from fp8debug.analysis.export import DEFAULT_VIEW, nothing_selected, openmetrics_lines, rows_of_view
    from fp8debug.analysis.run import open_run
    from fp8debug.cli.answer import tell_what_is_missing, tell_written, write_rows
    from fp8debug.cli.interruption import interruptible
    from fp8debug.cli.progress import progress

    with open_run(found.path, memory_limit=memory_limit) as run:
        _check_recorded(run)
        tell_what_is_missing(run)
        with interruptible(run.prepare("")):
            if to is Target.openmetrics:
                sink.write_lines(openmetrics_lines(run, wanted))
                return
            name = view or DEFAULT_VIEW
            # Rows on a terminal are what is waited for: no second line beside them.
            with progress(f"exporting {name}") if sink.path is not None else contextlib.nullcontext() as stage:
                if stage is not None:
                    stage.reading(run.prepare(""))
                n_rows = write_rows(rows_of_view(run, name, wanted), sink, lambda: nothing_selected(run, name, wanted))
    tell_written(sink, n_rows)


def _check_recorded(run: Run) -> None:
    from fp8debug.errors import Fp8DebugError

    if run.notice is not None:
        raise Fp8DebugError(f"{run.notice}; there is nothing to export")
