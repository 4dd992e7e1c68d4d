"""`fp8debug compact`: merge the files of a finished run."""

from __future__ import annotations

from typing import Annotated

import typer


def compact(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN_DIR", help="Run directory. [the latest in fp8debug-runs]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Merge the files of a finished run into few.

    Nothing is lost or counted twice, at whatever instant it is stopped, and the run can be read meanwhile; it needs
    as much room as the run has. Files that were merged are deleted, those that killed processes left too. A run that
    is resumed later goes on beside the merged files.

    Exit codes: 0 done, 1 it could not be done, such as a run that is being written, 2 wrong usage.
    """
    import sys

    from fp8debug.cli.progress import progress
    from fp8debug.cli.render.compact import compact_json, compact_text
    from fp8debug.cli.render.stream import write_stdout
    from fp8debug.hooks import compaction
    from fp8debug.rundir import find_run

    found = find_run(run_dir)
    with progress("merging files") as stage:
        done = compaction.compact(found, say=stage.tell)
    if as_json:
        sys.stdout.write(compact_json(found.path, done))
    else:
        write_stdout(compact_text(found.path, done))
