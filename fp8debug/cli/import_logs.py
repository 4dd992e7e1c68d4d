"""`fp8debug import`: logs of other tools become a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fp8debug.analysis.importing import Imported
    from fp8debug.rundir import RunDir

_KINDS = ("te-log",)


def import_logs(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Logs, plain or gzip; of several ranks a file each.")
    ],
    kind: Annotated[
        str, typer.Option("--from", metavar="KIND", help="What wrote them: te-log, Transformer Engine's debug log.")
    ],
    out: Annotated[
        str | None,
        typer.Option("-o", "--out", metavar="RUN_DIR", help="Where to write. [a new one in fp8debug-runs]"),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="A name for the run.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Rename a run that is at RUN_DIR, and write there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a run of the logs of another tool, for reports and SQL.

    Numbers stay as they were logged; nothing is computed from them. What could not be read, and what the log's format
    hides, is said and becomes events of the run.

    Exit codes: 0 done, 1 it could not be done, 2 wrong usage, such as a file that is no such log.
    """
    import sys

    from fp8debug.cli.render.import_logs import imported_json, imported_text
    from fp8debug.cli.render.stream import write_stdout
    from fp8debug.cli.render.wording import shown_path
    from fp8debug.errors import UsageError
    from fp8debug.hooks.place import point_latest, resolve_run_path
    from fp8debug.hooks.superseded import make_readers_lock
    from fp8debug.rundir import RunDir

    if kind not in _KINDS:
        raise UsageError(f"--from {kind!r}: expected what wrote the logs: {' or '.join(_KINDS)}")
    run = RunDir(resolve_run_path(out, Path(files[0]).name, name, 1))
    done = _import([Path(file) for file in files], run, name, force=force)
    make_readers_lock(run.storage)
    point_latest(run.path)
    if as_json:
        sys.stdout.write(imported_json(done))
    else:
        write_stdout(imported_text(done, shown_path(run.path)))


def _import(files: list[Path], run: RunDir, name: str | None, *, force: bool) -> Imported:
    from fp8debug.analysis.importing import import_te_logs
    from fp8debug.errors import Fp8DebugError, UsageError
    from fp8debug.hooks.place import check_run_path, prepare_run_path

    if not force and run.storage.names():
        raise UsageError(
            f"--out {run.path} is not empty; two runs never mix in one directory: give another --out, or --force to "
            "rename the old one"
        )
    check_run_path(run.path, force=force)
    command = ["fp8debug", "import", *map(str, files), "--from", "te-log"]
    try:
        return import_te_logs(
            files, run, name=name, command=command, begin=lambda: prepare_run_path(run.path, force=force)
        )
    except OSError as error:
        raise Fp8DebugError(f"cannot write {run.path}: {error}; give another --out") from error
