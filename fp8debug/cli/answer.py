"""Run the query of `fp8debug sql` and write its rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fp8debug.cli.interruption import interruptible
from fp8debug.cli.progress import progress
from fp8debug.cli.question import Question
from fp8debug.cli.render.results import TEXT_FORMATS, Result, distinct
from fp8debug.cli.render.stream import tell
from fp8debug.cli.render.tables import escape
from fp8debug.cli.render.wording import count
from fp8debug.cli.sink import Sink
from fp8debug.errors import Fp8DebugError

if TYPE_CHECKING:
    import duckdb

    from fp8debug.analysis.run import Run

_BATCH_ROWS = 2_000
_PLAN_COLUMNS = ("explain_key", "explain_value")
_NUMBERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL")


def write_answer(question: Question, sink: Sink) -> None:
    """Run the query and write what it gives.

    Raises:
        Fp8DebugError: the query cannot be run, in DuckDB's words.
        UsageError: it is not one reading statement.
    """
    from fp8debug.analysis.query import run_query
    from fp8debug.analysis.run import open_run

    assert question.run is not None and question.query is not None
    with open_run(question.run.path) as run:
        tell_what_is_missing(run)
        # Rows on a terminal are what is waited for: no second line beside them.
        said = progress("running the query") if sink.path is not None else contextlib.nullcontext()
        with interruptible(run.prepare("")), said:
            n_rows = write_rows(run_query(run, question.query), sink)
    tell_written(sink, n_rows)


def write_rows(
    relation: duckdb.DuckDBPyRelation, sink: Sink, when_empty: Callable[[], Fp8DebugError] | None = None
) -> int:
    """Write the rows of a relation as they come; how many they were.

    Raises:
        Fp8DebugError: the query fails while it runs, or the error of `when_empty` where there is no row.
    """
    write = _write_parquet if sink.format == "parquet" else _write_text
    return write(relation, sink, when_empty)


def tell_written(sink: Sink, n_rows: int) -> None:
    """Say where the rows went, if that is a file."""
    if sink.path is not None:
        tell(f"wrote {sink.path} ({count(n_rows, 'row')})")


def tell_what_is_missing(run: Run) -> None:
    """Say that nothing was recorded yet, and which files could not be read."""
    if run.notice is not None:
        tell(run.notice)
    for problem in run.problems:
        tell(problem.message)


def _write_text(relation: duckdb.DuckDBPyRelation, sink: Sink, when_empty: Callable[[], Fp8DebugError] | None) -> int:
    n_rows = 0
    batches = _batches(relation)
    first = next(batches, None)
    if first is None and when_empty is not None:
        raise when_empty()

    def counted() -> Iterator[Sequence[Any]]:
        nonlocal n_rows
        for batch in itertools.chain(() if first is None else (first,), batches):
            n_rows += len(batch)
            yield batch

    is_number = tuple(str(kind).removeprefix("U").startswith(_NUMBERS) for kind in relation.types)
    is_list = tuple(str(kind).endswith("]") for kind in relation.types)
    right = tuple(number and not listed for number, listed in zip(is_number, is_list, strict=True))
    result = Result(tuple(relation.columns), right, counted())
    is_plan = sink.format == "table" and result.columns == _PLAN_COLUMNS
    sink.write_lines(_plan_lines(result) if is_plan else TEXT_FORMATS[sink.format](result))
    return n_rows


def _plan_lines(result: Result) -> Iterator[str]:
    """What EXPLAIN gives is a drawing: its lines are kept."""
    for batch in result.batches:
        for _, plan in batch:
            yield from map(escape, plan.splitlines())


def _batches(relation: duckdb.DuckDBPyRelation) -> Iterator[list[Any]]:
    import duckdb

    try:
        rows = iter(relation.iter_rows())
        while batch := list(itertools.islice(rows, _BATCH_ROWS)):
            yield batch
    except duckdb.Error as error:
        raise Fp8DebugError(f"cannot run the query: {error}") from error


def _write_parquet(
    relation: duckdb.DuckDBPyRelation, sink: Sink, when_empty: Callable[[], Fp8DebugError] | None
) -> int:
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    n_rows = 0
    try:
        reader = relation.to_arrow_reader(100_000)
        names = distinct(reader.schema.names)
        schema = pa.schema([field.with_name(name) for field, name in zip(reader.schema, names, strict=True)])
        batches = (batch for batch in reader if batch.num_rows)
        first = next(batches, None)
        if first is None and when_empty is not None:
            raise when_empty()
        with sink.opened() as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for batch in itertools.chain(() if first is None else (first,), batches):
                writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                n_rows += batch.num_rows
    except (duckdb.Error, pa.ArrowException) as error:
        raise Fp8DebugError(f"cannot run the query: {error}") from error
    return n_rows
