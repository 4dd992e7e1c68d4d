"""Views and macros: one `.sql` file each, shipped as package data and loaded in the order of their names.

A file is `NN_<name>.sql`. Its first line is a comment that says what the view or macro means; comment lines of the
form `-- <column>: <meaning>` after it describe columns that the stored tables do not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import duckdb

_COLUMN_LINE = re.compile(r"^-- (\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One shipped view or macro."""

    name: str
    meaning: str
    column_meanings: dict[str, str]
    text: str

    @property
    def is_view(self) -> bool:
        """False for a macro."""
        return f"create or replace view {self.name} as" in self.text


@cache
def sql_files() -> tuple[SqlFile, ...]:
    """All shipped files, in loading order."""
    return tuple(_read_all())


def load(con: duckdb.DuckDBPyConnection) -> None:
    """Create every view and macro. The schema `stored` and the threshold variables must be there."""
    con.execute("begin")
    for file in sql_files():
        con.execute(file.text)
    con.execute("commit")


def _read_all() -> Iterator[SqlFile]:
    folder = files("fp8debug.analysis") / "sql"
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".sql"):
            yield _parse(entry.name, entry.read_text(encoding="utf-8"))


def _parse(file_name: str, text: str) -> SqlFile:
    first, _, rest = text.partition("\n")
    name = file_name.removesuffix(".sql").partition("_")[2]
    head = rest.partition("create or replace")[0]
    return SqlFile(name, first.removeprefix("-- "), dict(_COLUMN_LINE.findall(head)), text)
