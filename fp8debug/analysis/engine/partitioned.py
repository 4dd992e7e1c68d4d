"""What engines share that go through a run partition by partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import duckdb
import pyarrow as pa

from fp8debug.analysis.engine.base import Source
from fp8debug.analysis.engine.partitions import KeyRange, RowGroup, ranges, row_groups
from fp8debug.analysis.engine.reduction import Reduction
from fp8debug.analysis.engine.task import Answer, Task
from fp8debug.analysis.parts import quote_name, quote_text, stored_select
from fp8debug.errors import Fp8DebugError
from fp8debug.schema import TABLES

Assignment = tuple[Task, pa.Table]
"""A task and its `given`."""


def assignments(reduction: Reduction, source: Source, n_partitions: int, min_rows: int) -> list[Assignment]:
    """Split a reduction into tasks: at most `n_partitions`, of about `min_rows` rows of its first table at least.

    Partitions of which nothing is asked have no task. The connection has the table `given`.
    """
    con = source.prepare("")
    groups = {table: row_groups(con, source.parts[table]) for table in reduction.tables}
    weighed = groups[reduction.tables[0]]
    n = max(1, min(n_partitions, sum(group.n_rows for group in weighed) // max(1, min_rows)))
    before = [*_variables(con)]
    found = []
    for part in ranges(weighed, n):
        given = con.sql(f"select * from given where {part.condition}").to_arrow_table()
        if len(given):
            found.append((_task(con, reduction, source, part, groups, before), given))
    return found


def merge(target: str, reduction: Reduction, source: Source, answers: Iterable[Answer]) -> None:
    """Ask the merge query of all answers, into the table `target`.

    Raises:
        Fp8DebugError: some partition has none.
    """
    tables = [_table_of(answer) for answer in answers]
    if not tables:
        return
    con = source.prepare(reduction.merge)
    con.register("partials", pa.concat_tables(tables))
    try:
        con.execute(f"insert into {target} by name {reduction.merge}")
    finally:
        con.unregister("partials")


def _table_of(answer: Answer) -> pa.Table:
    if answer.table is not None:
        return answer.table
    if answer.missing is not None:
        raise Fp8DebugError(
            f"the machine {answer.host} does not see {answer.missing}: all machines of the cluster must see the run "
            "under the same path; put it on a file system that they share or in a bucket, or leave out --engine"
        )
    raise Fp8DebugError(f"a partition could not be computed on {answer.host}: {answer.error}")


def _task(
    con: duckdb.DuckDBPyConnection,
    reduction: Reduction,
    source: Source,
    part: KeyRange,
    groups: Mapping[str, Sequence[RowGroup]],
    before: Sequence[str],
) -> Task:
    files: list[str] = []
    statements = [*before, "create schema stored"]
    for table in reduction.tables:
        held = {group.path for group in groups[table] if part.may_hold(group)}
        parts = [good for good in source.parts[table] if good.path in held]
        files += [good.path for good in parts]
        select = f"select * from ({stored_select(TABLES[table], parts)}) where {part.condition}"
        statements += _stored_views(con, table, select)
    statements += [macro.text for macro in reduction.macros]
    return Task(tuple(files), tuple(statements), reduction.partial, source.config, source.store)


def _stored_views(con: duckdb.DuckDBPyConnection, table: str, select: str) -> list[str]:
    """The view of a table; where the run was opened at a part of it, narrowed as the run's own view is."""
    narrowed = con.execute(
        "select sql from duckdb_views() where schema_name = 'stored' and view_name = $table and contains(sql, $whole)",
        {"table": table, "whole": f"all_{table}"},
    ).fetchall()
    name = f"all_{table}" if narrowed else table
    return [f"create view stored.{quote_name(name)} as {select}", *(sql for (sql,) in narrowed)]


def _variables(con: duckdb.DuckDBPyConnection) -> list[str]:
    rows = con.execute("select name, value, type from duckdb_variables()").fetchall()
    return [
        f"set variable {quote_name(name)} = {'null' if value is None else quote_text(value)}::{kind}"
        for name, value, kind in rows
    ]
