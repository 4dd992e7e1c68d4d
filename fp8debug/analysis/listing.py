"""What a person can ask about: views with their columns and meanings, macros with their arguments."""

from __future__ import annotations

import re
from dataclasses import dataclass

import duckdb

from fp8debug.analysis.views import SqlFile, sql_files
from fp8debug.schema import TABLES


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One column of a view."""

    name: str
    type: str
    meaning: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class ViewInfo:
    """One view and its columns in order."""

    name: str
    meaning: str
    columns: tuple[ColumnInfo, ...]


@dataclass(frozen=True, slots=True)
class MacroInfo:
    """One macro: `signature` is its name and arguments; a table macro goes after FROM."""

    name: str
    signature: str
    is_table: bool
    meaning: str


def views_with_columns(con: duckdb.DuckDBPyConnection) -> list[ViewInfo]:
    """Views meant for people, in loading order. `con` must have them all: use `Run.con`."""
    rows = con.execute(
        "select table_name, column_name, data_type from duckdb_columns() "
        "where schema_name = 'main' order by column_index"
    ).fetchall()
    found = []
    for file in sql_files().values():
        if file.is_internal or "macro" in file.kind:
            continue
        columns = tuple(ColumnInfo(c, kind, *_meaning(file, c)) for view, c, kind in rows if view == file.name)
        found.append(ViewInfo(file.name, file.meaning, columns))
    return found


def macros() -> list[MacroInfo]:
    """Macros meant for people, in loading order."""
    return [
        MacroInfo(file.name, _signature(file), file.kind == "table macro", file.meaning)
        for file in sql_files().values()
        if "macro" in file.kind and not file.is_internal
    ]


def _meaning(file: SqlFile, column: str) -> tuple[str, str]:
    """Meaning and unit: from the file itself, else from the stored tables it reads, else from the files it needs."""
    if column in file.column_meanings:
        return file.column_meanings[column], ""
    for table in TABLES.values():
        if re.search(rf'\bstored\."?{table.name}\b', file.text):
            for known in table.columns:
                if known.name == column:
                    return known.meaning, known.unit
    for needed in reversed(file.needs):
        meaning = _meaning(sql_files()[needed], column)
        if meaning[0]:
            return meaning
    return "", ""


def _signature(file: SqlFile) -> str:
    found = re.search(r"macro (\w+\([^)]*\))", file.text)
    assert found is not None, f"{file.name} is no macro"
    return found[1]
