"""Queries that come from outside: what is admitted, and the locks they run under.

Two walls. Every statement is checked before any runs, through EXPLAIN too; then the connection is locked: no file
outside the run, no other configuration, and a transaction that cannot write. The second alone would let COPY write
into the run's own folder.
"""

from __future__ import annotations

import contextlib
import re

import duckdb

from fp8debug.analysis.parts import quote_text
from fp8debug.analysis.run import Run
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.storage import RunPath, resolved

# DuckDB parses DESCRIBE, SUMMARIZE and SHOW as SELECT: they only read the catalog.
_READS = duckdb.StatementType.SELECT
_EXPLAIN = duckdb.StatementType.EXPLAIN
_FIRST_WORD = re.compile(rb"\w+|.", re.DOTALL)
_EXPLAIN_WORDS = {b"explain", b"analyze", b"analyse", b"verbose"}


def admit(sql: str) -> duckdb.Statement:
    """Parse a query and refuse whatever is not one reading statement. Nothing is run.

    Raises:
        UsageError: no statement, several, or one that is not SELECT, EXPLAIN, DESCRIBE or SUMMARIZE.
        Fp8DebugError: a syntax error.
    """
    try:
        sql.encode()
        statements = duckdb.extract_statements(sql)
    except (duckdb.Error, UnicodeEncodeError) as error:  # the latter: bytes that are no UTF-8, on the command line
        raise Fp8DebugError(f"cannot parse the query: {error}") from error
    if len(statements) != 1:
        got = "none" if not statements else f"{len(statements)}: {', '.join(_word(s) for s in statements)}"
        raise UsageError(f"expected exactly one SQL statement, got {got}; nothing was run")
    statement = statements[0]
    if statement.type == _EXPLAIN:
        _admit_explained(sql)
    elif statement.type != _READS:
        raise UsageError(
            f"{_word(statement)} is refused: only SELECT, EXPLAIN, DESCRIBE and SUMMARIZE may be run on a run "
            "directory; nothing was run (to write a result to a file, use -o)"
        )
    return statement


def lock(con: duckdb.DuckDBPyConnection, run_path: RunPath) -> None:
    """Confine a connection for good: it reads files below `run_path` only and cannot be configured any more.

    It spills where it did before (see `fp8debug.analysis.memory`).
    """
    for setting in (
        f"set allowed_directories = [{quote_text(str(resolved(run_path)))}]",
        "set enable_external_access = false",
        "set lock_configuration = true",
    ):
        con.execute(setting)


def run_query(run: Run, sql: str) -> duckdb.DuckDBPyRelation:
    """Admit a query from outside and bind it under the locks. Rows are computed when the relation is fetched.

    Raises:
        UsageError, Fp8DebugError: as `admit`; or the query does not fit the views.
    """
    statement = admit(sql)
    _end_transaction(run.prepare(""))
    con = run.prepare(sql)
    if not con.execute("select current_setting('lock_configuration')").fetchall()[0][0]:
        lock(con, run.folder)
    try:
        con.execute("begin transaction read only")
        relation = con.sql(statement)
    except duckdb.Error as error:
        _end_transaction(con)
        raise Fp8DebugError(f"cannot run the query: {error}") from error
    assert relation is not None, "a reading statement gives a relation"
    return relation


def _end_transaction(con: duckdb.DuckDBPyConnection) -> None:
    """Leave the read-only transaction of an earlier query: views can only be created outside it."""
    with contextlib.suppress(duckdb.TransactionException):
        con.execute("rollback")


def _admit_explained(sql: str) -> None:
    """Admit what EXPLAIN explains: EXPLAIN ANALYZE runs it."""
    text = sql.encode()  # DuckDB counts bytes
    tokens = [offset for offset, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    words = [_FIRST_WORD.match(text, offset)[0].lower() for offset in tokens]  # type: ignore[index]
    position = 0
    while position < len(words) and words[position] in _EXPLAIN_WORDS:
        position += 1
    if position < len(words) and words[position] == b"(":
        position = words.index(b")", position) + 1 if b")" in words[position:] else len(words)
    inner = text[tokens[position] :].decode() if 0 < position < len(words) else ""
    try:
        admit(inner)
    except UsageError:
        raise
    except Fp8DebugError as error:
        raise UsageError("this form of EXPLAIN is refused: what it explains could not be told apart") from error


def _word(statement: duckdb.Statement) -> str:
    return statement.type.name
