"""`fp8debug sql`: ask a run anything in SQL, read-only."""

from __future__ import annotations

from typing import Annotated

import typer


def sql(
    run_dir: Annotated[
        str | None, typer.Argument(metavar="RUN_DIR", help="Run directory. [the latest in fp8debug-runs]")
    ] = None,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT; - reads it from standard input.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the query from FILE.")] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="FORMAT", help="table, csv, json, jsonl or parquet. [what -o ends in, else table]"
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE instead of standard output.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file given with -o.")] = False,
) -> None:
    """Ask a run anything in SQL, read-only.

    Without a query it lists the views with their columns and meanings. Only the run's own files can be read, and only
    SELECT, EXPLAIN, DESCRIBE and SUMMARIZE are admitted. It works while the training is still writing.
    """
    from fp8debug.cli.collector import paused_collector
    from fp8debug.cli.question import find_question
    from fp8debug.cli.sink import Sink

    question = find_question(run_dir, query, file)
    sink = Sink.from_options(output_format, output, force=force, outside=question.run)
    with paused_collector():
        if question.query is None:
            from fp8debug.cli.listing import write_listing

            write_listing(question, sink)
        else:
            from fp8debug.cli.answer import write_answer

            write_answer(question, sink)
