"""Views and macros: one `.sql` file each, shipped as package data, created when they are first named.

A file is `NN_<name>.sql`; it may use files that sort before it. Its first line is a comment that says what the view or
macro means; comment lines of the form `-- <column>: <meaning>` after it describe columns that the stored tables do not
have; a line `-- Internal.` keeps it out of listings. Creating a view binds everything below it, and all of them
together would cost more than most questions: hence the laziness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import duckdb

_COLUMN_LINE = re.compile(r"^-- (\w+): (.+)$", re.MULTILINE)
_WORD = re.compile(r"(?<!stored\.)\b[a-z_]\w*")
# Statements that look at the catalog see every view, so every view must be there.
_CATALOG = re.compile(
    # `desc` where a statement begins: behind a column it is an order.
    r"\b(show|describe|duckdb_\w+|information_schema|pg_catalog|query|query_table)\b|(^|[;(])\s*desc\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One shipped view or macro."""

    name: str
    kind: str
    """view | table (a view computed once) | macro | table macro"""
    meaning: str
    column_meanings: dict[str, str]
    text: str
    is_internal: bool
    """Whether it only serves others."""
    needs: tuple[str, ...]
    """Names of the files it uses, or may use: a column that is called like a macro counts too."""


@cache
def sql_files() -> dict[str, SqlFile]:
    """All shipped files by name, each after those it needs."""
    found: dict[str, SqlFile] = {}
    for file_name, text in _read_all():
        file = _parse(file_name, text, found)
        found[file.name] = file
    return found


def named_in(query: str) -> set[str]:
    """Names of shipped files that `query` uses, or may use."""
    return _words(query) & sql_files().keys()


class Views:
    """Which of the shipped views and macros a connection has.

    Args:
        con: where they are created.
        others: files that take the place of shipped ones, by name.
        fill: by name of a table, what puts rows into it once it is created.
    """

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        others: Mapping[str, SqlFile] | None = None,
        fill: Mapping[str, Callable[[duckdb.DuckDBPyConnection], None]] | None = None,
    ) -> None:
        self._con = con
        self._others = others or {}
        self._fill = fill or {}
        self._created: set[str] = set()

    @property
    def is_complete(self) -> bool:
        """Whether everything was created."""
        return len(self._created) == len(sql_files())

    def require_named_in(self, query: str) -> None:
        """Create what `query` names."""
        if self.is_complete:
            return
        if _CATALOG.search(query):
            self.require_all()
        for name in named_in(query):
            self._create(name)

    def require_all(self) -> None:
        """Create everything."""
        for name in sql_files():
            self._create(name)

    def _create(self, name: str) -> None:
        if name in self._created:
            return
        file = self._others.get(name) or sql_files()[name]
        for needed in file.needs:
            self._create(needed)
        self._con.execute(file.text)
        self._created.add(name)
        if name in self._fill:
            self._fill[name](self._con)


def _read_all() -> Iterator[tuple[str, str]]:
    folder = files("fp8debug.analysis") / "sql"
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        if entry.name.endswith(".sql"):
            yield entry.name, entry.read_text(encoding="utf-8")


def _parse(file_name: str, text: str, earlier: Iterable[str]) -> SqlFile:
    return parse_file(file_name.removesuffix(".sql").partition("_")[2], text, earlier)


def parse_file(name: str, text: str, known: Iterable[str]) -> SqlFile:
    """The file called `name`, which may use what is `known`."""
    head, _, body = text.partition("create or replace ")
    first, _, rest = head.partition("\n")
    kind = body.split()[0].replace("temp", "table")
    if kind == "macro" and re.search(r"\) as table\b", body):
        kind = "table macro"
    words = _words(body)
    needs = tuple(n for n in known if n in words)
    return SqlFile(
        name, kind, first.removeprefix("-- "), dict(_COLUMN_LINE.findall(rest)), text, "-- Internal." in rest, needs
    )


def _words(sql: str) -> set[str]:
    return set(_WORD.findall(sql.lower()))
