"""The Parquet parts of a run as DuckDB views in the schema `stored`, one a table.

Each table is read from an explicit list of files, taken from one listing: a part that appears later is not seen half
way through a query. A part that cannot be read, or is not ours, is set aside with its reason; the rest is still read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import duckdb

from fp8debug.errors import Fp8DebugError
from fp8debug.rundir import RunDir
from fp8debug.schema import TABLES, Table

_DUCKDB_TYPES = {
    "bool": "BOOLEAN",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint64": "UBIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "string": "VARCHAR",
}

# The leaves of a Parquet schema in storage order, as one text a file: files with equal texts have equal columns.
_SIGNATURES = """
select file_name, string_agg(concat_ws(' ', name, type, num_children, logical_type), ',' order by column_id)
from parquet_schema($files)
group by file_name
"""


@dataclass(frozen=True, slots=True)
class BadFile:
    """A part that was left out, and why."""

    path: str
    table: str
    reason: str

    @property
    def message(self) -> str:
        """One sentence for a person."""
        return f"{self.path} is left out: {self.reason}"


class GoodPart(NamedTuple):
    """A part that is read."""

    path: str
    absent: frozenset[str]
    """Columns that its schema version did not have yet."""


def duckdb_type(word: str) -> str:
    """The DuckDB type that a schema word such as `list<float32>` stands for."""
    if word.startswith("list<"):
        return _DUCKDB_TYPES[word[5:-1]] + "[]"
    return _DUCKDB_TYPES[word]


def create_stored_views(con: duckdb.DuckDBPyConnection, run: RunDir) -> tuple[list[BadFile], dict[str, list[GoodPart]]]:
    """Create `stored.<table>` for every table of the schema.

    Returns:
        The parts that were left out, and by table those that are read.
    """
    con.execute("create schema stored")
    bad: list[BadFile] = []
    read: dict[str, list[GoodPart]] = {}
    for table in TABLES.values():
        good, rejected = _create_stored_view(con, run, table)
        bad += rejected
        read[table.name] = good
    return bad, read


def _create_stored_view(
    con: duckdb.DuckDBPyConnection, run: RunDir, table: Table
) -> tuple[list[GoodPart], list[BadFile]]:
    """List and bind; once more where a file has gone between the two, since the parts were merged."""
    for may_change in (True, False):
        names = run.part_names(table.name)
        good, bad = sort_out(con, table, [run.storage.address(name) for name in names])
        if bad and may_change and run.part_names(table.name) != names:
            continue
        try:
            con.execute(f"create view stored.{quote_name(table.name)} as {stored_select(table, good)}")
            break
        except duckdb.IOException:
            if not may_change:
                raise
    return good, bad


def sort_out(
    con: duckdb.DuckDBPyConnection, table: Table, paths: Sequence[str]
) -> tuple[list[GoodPart], list[BadFile]]:
    """Split `paths` into the parts of `table` that can be read and those that cannot."""
    good: list[GoodPart] = []
    bad: list[BadFile] = []
    verdicts: dict[str, str | frozenset[str]] = {}
    for path, outcome in _read_signatures(con, paths):
        if isinstance(outcome, Exception):
            bad.append(BadFile(path, table.name, f"not a readable Parquet file ({_first_line(outcome)})"))
            continue
        if outcome not in verdicts:
            verdicts[outcome] = _compare_columns(con, table, path)
        verdict = verdicts[outcome]
        if isinstance(verdict, str):
            bad.append(BadFile(path, table.name, verdict))
        else:
            good.append(GoodPart(path, verdict))
    return good, bad


def _read_signatures(con: duckdb.DuckDBPyConnection, paths: Sequence[str]) -> Iterator[tuple[str, str | duckdb.Error]]:
    """Yield each path with the text of its columns, or with the error that its footer gave."""
    if not paths:
        return
    patterns = {escape_glob(path): path for path in paths}
    try:
        rows = con.execute(_SIGNATURES, {"files": list(patterns)}).fetchall()
    except duckdb.Error as error:
        if len(paths) == 1:
            yield paths[0], error
            return
        # One bad file fails the whole call: halving finds it in few calls, however many files there are.
        middle = len(paths) // 2
        yield from _read_signatures(con, paths[:middle])
        yield from _read_signatures(con, paths[middle:])
        return
    signatures = dict(rows)
    for path in paths:
        yield path, signatures[path]


def _compare_columns(con: duckdb.DuckDBPyConnection, table: Table, path: str) -> str | frozenset[str]:
    """Why the file is not a part of `table`, or the columns that it is too old to have."""
    try:
        rows = con.execute(
            "select column_name, column_type from (describe from read_parquet($file, hive_partitioning = false))",
            {"file": escape_glob(path)},
        ).fetchall()
    except duckdb.Error as error:
        return f"not a readable Parquet file ({_first_line(error)})"
    got = dict(rows)
    expected = {column.name: duckdb_type(column.type) for column in table.columns}
    absent = frozenset(column.name for column in table.columns if column.name not in got and column.since > 1)
    expected = {name: kind for name, kind in expected.items() if name not in absent}
    if missing := [name for name in expected if name not in got]:
        return f"not a part of table {table.name}: it has no column {', '.join(missing[:3])}"
    if unknown := [name for name in got if name not in expected]:
        return f"not a part of table {table.name}: unknown column {', '.join(unknown[:3])}"
    wrong = [f"{name} is {got[name]}, expected {kind}" for name, kind in expected.items() if got[name] != kind]
    return f"not a part of table {table.name}: {wrong[0]}" if wrong else absent


def stored_select(table: Table, parts: Sequence[GoodPart]) -> str:
    """The query that reads `parts` of `table`, with all columns of the schema."""
    alike: dict[frozenset[str], list[str]] = {}
    for part in parts:
        alike.setdefault(part.absent, []).append(part.path)
    selects = [_select_sql(table, paths, absent) for absent, paths in alike.items()] or [_nothing_sql(table)]
    return " union all ".join(selects)


def _nothing_sql(table: Table) -> str:
    nulls = ", ".join(f"null::{duckdb_type(column.type)} as {quote_name(column.name)}" for column in table.columns)
    return f"select {nulls} where false"


def _select_sql(table: Table, paths: Sequence[str], absent: frozenset[str]) -> str:
    names = ", ".join(
        f"null::{duckdb_type(c.type)} as {quote_name(c.name)}" if c.name in absent else quote_name(c.name)
        for c in table.columns
    )
    files = ", ".join(quote_text(escape_glob(path)) for path in paths)
    # Without hive_partitioning = false the folder name rank=R would replace the column.
    return f"select {names} from read_parquet([{files}], hive_partitioning = false)"


def escape_glob(path: str) -> str:
    """The path as a pattern that matches nothing but itself."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in path)


def quote_name(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """An SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def quote_texts(words: Iterable[str]) -> str:
    """A list of SQL text literals, comma between."""
    return ", ".join(map(quote_text, words))


def printable_text(text: str) -> str:
    """An SQL string that can be shown anywhere: characters that no terminal prints stand as their code points."""
    if text.isprintable():
        return quote_text(text)
    pieces: list[str] = []
    for shown, group in itertools.groupby(text, str.isprintable):
        piece = "".join(group)
        pieces += [quote_text(piece)] if shown else [f"chr({ord(c)})" for c in piece]
    return " || ".join(pieces)


def explained(error: duckdb.Error, paths: Iterable[str]) -> Exception:
    """What to raise instead of an error of DuckDB: one for a person where a file or the memory is the cause.

    Opening a run reads what the parts say of themselves; only a query that needs them finds that rows are damaged.
    """
    if isinstance(error, duckdb.OutOfMemoryException):
        return Fp8DebugError(f"not enough memory: {_first_line(error)}")
    with duckdb.connect() as con:
        for path in paths:
            try:
                con.execute(f"select bit_xor(hash(columns(*))) from read_parquet({quote_text(escape_glob(path))})")
            except duckdb.Error as damage:
                return Fp8DebugError(
                    f"{path} is damaged: its rows cannot be read ({_first_line(damage)}); move it out of the run "
                    "directory to go on without it"
                )
    return error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
