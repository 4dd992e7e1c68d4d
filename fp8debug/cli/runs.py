"""`fp8debug runs`: list the recorded runs."""

from __future__ import annotations

from typing import Annotated

import typer


def runs(
    folder: Annotated[
        str | None, typer.Argument(metavar="FOLDER", help="Folder of run directories, or an URL. [fp8debug-runs]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List the recorded runs, newest last."""
    import sys
    from pathlib import Path

    from fp8debug.analysis.catalog import list_entries
    from fp8debug.cli.render.runs import runs_json, runs_table
    from fp8debug.cli.render.stream import tell, write_stdout
    from fp8debug.errors import Fp8DebugError
    from fp8debug.rundir import RUNS_FOLDER
    from fp8debug.storage import run_path

    path = run_path(folder or RUNS_FOLDER)
    if folder is not None and isinstance(path, Path) and not path.is_dir():
        raise Fp8DebugError(f"no such folder: {path}; expected one that holds run directories, such as {RUNS_FOLDER}")
    try:
        entries = list_entries(path)
    except OSError as error:  # an object store that cannot be reached
        raise Fp8DebugError(f"cannot list {path}: {error}") from error
    if as_json:
        sys.stdout.write(runs_json(path, entries))
        return
    write_stdout(runs_table(entries))
    if not entries:
        tell(f"no runs in {path}/; record one with `fp8debug attach train.py`")
