"""The heavy questions, as pairs of queries: `sql/<name>.partial.sql` and `sql/<name>.merge.sql`.

A partial query reads the tables in the schema `stored`, and `given`. In a partition these hold the records of a range
of (rank, seq), each of them whole, so that what is of one record needs no merging; sums and counts over records are
added by the merge query, which reads `partials`. Medians, and windows over steps, are for neither: they stand in views
that read the merged result. Macros are those of the shipped views, created where the query runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fp8debug.analysis.views import SqlFile, named_in, sql_files

_STORED = re.compile(r"\bstored\.\"?([a-z_]+)")


@dataclass(frozen=True, slots=True)
class Reduction:
    """One heavy question."""

    name: str
    partial: str
    merge: str
    macros: tuple[SqlFile, ...]
    """Those that the partial query uses, each after those it needs itself."""
    tables: tuple[str, ...]
    """Stored tables that it reads, directly or in a macro."""


@cache
def reduction(name: str) -> Reduction:
    """The reduction called `name`."""
    folder = files("fp8debug.analysis.engine") / "sql"
    partial, merge = ((folder / f"{name}.{kind}.sql").read_text(encoding="utf-8") for kind in ("partial", "merge"))
    macros = _macros(partial)
    texts = [partial, *(macro.text for macro in macros)]
    tables = dict.fromkeys(table for text in texts for table in _STORED.findall(text))
    return Reduction(name, partial, merge, macros, tuple(tables))


def _macros(query: str) -> tuple[SqlFile, ...]:
    found: dict[str, SqlFile] = {}

    def add(names: set[str]) -> None:
        for file in (sql_files()[name] for name in sorted(names)):
            if "macro" in file.kind and file.name not in found:
                add(set(file.needs))
                found[file.name] = file

    add(named_in(query))
    return tuple(found.values())
