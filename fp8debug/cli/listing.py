"""What `fp8debug sql` says when it is asked nothing: the views, their columns and meanings."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fp8debug.cli.question import Question
from fp8debug.cli.render.results import TEXT_FORMATS, Result
from fp8debug.cli.render.tables import columns, wrap
from fp8debug.cli.sink import Sink
from fp8debug.errors import UsageError
from fp8debug.rundir import Manifest, RunDir

if TYPE_CHECKING:
    from fp8debug.analysis.listing import MacroInfo, ViewInfo

_WIDTH = 80


def write_listing(question: Question, sink: Sink) -> None:
    """List views and macros; they are the same for every run, so the named run is only checked to be one.

    Raises:
        UsageError: as Parquet.
        Fp8DebugError: the named run is none.
    """
    from fp8debug.analysis.listing import macros, views_with_columns
    from fp8debug.analysis.run import open_run

    if question.run is not None:
        question.run.read_manifest()
    # An empty run has every view, and none of them costs anything to make.
    with tempfile.TemporaryDirectory(prefix="fp8debug-") as folder:
        RunDir(folder).write_manifest(Manifest(run_id="none", command=[], created_at=""))
        with open_run(Path(folder)) as run:
            views = views_with_columns(run.con)
    if sink.format == "parquet":
        raise UsageError("the list of views is not written as parquet; use table, csv, json or jsonl")
    if sink.format != "table":
        sink.write_lines(TEXT_FORMATS[sink.format](_as_rows(views)))
        return
    run_path = "RUN_DIR" if question.run is None else shlex.quote(str(question.run.path))
    sink.write_lines(_text(views, macros(), run_path))


def _as_rows(views: list[ViewInfo]) -> Result:
    rows = [
        (view.name, column.name, column.type.lower(), column.unit or None, column.meaning or None)
        for view in views
        for column in view.columns
    ]
    return Result(("view", "column", "type", "unit", "meaning"), (False,) * 5, [rows])


def _text(views: list[ViewInfo], macros: list[MacroInfo], run_path: str) -> Iterator[str]:
    yield from wrap(f'VIEWS, to be asked with: fp8debug sql {run_path} "from candidates"', _WIDTH, indent="")
    for view in views:
        yield ""
        yield view.name
        yield from wrap(view.meaning, _WIDTH)
        rows = [(column.name, column.type.lower()) for column in view.columns]
        heads = columns(rows)
        width = max((len(head) for head in heads), default=0)
        for head, column in zip(heads, view.columns, strict=True):
            meaning = f"{column.meaning} [{column.unit}]" if column.unit else column.meaning
            yield from wrap(meaning or "-", _WIDTH, indent="    " + head.ljust(width) + "  ", hanging="")
    yield ""
    yield "MACROS, to be used in queries; the table macros go after FROM"
    for macro in macros:
        yield ""
        yield from wrap(("from " if macro.is_table else "") + macro.signature, _WIDTH, hanging="  ")
        yield from wrap(macro.meaning, _WIDTH, indent="    ")
