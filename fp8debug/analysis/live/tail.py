"""The newest files of a run that is being written, as `stored` views of a connection that stays open.

What one look costs does not grow with the run: of each table and rank only the last parts are opened, of at most
`MOST_RANKS` ranks, a footer that was read once is not read again, and rows of older steps are passed over by the
statistics of their row groups.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb

from fp8debug.analysis import thresholds
from fp8debug.analysis.memory import confine
from fp8debug.analysis.parts import BadFile, GoodPart, quote_name, sort_out, stored_select
from fp8debug.analysis.views import sql_files
from fp8debug.generations import READERS_LOCK, live_names
from fp8debug.parts import parse_part
from fp8debug.rundir import RunDir
from fp8debug.schema import TABLES

MOST_RANKS = 16
"""Ranks that are read, spread evenly, the first and the last among them."""
MOST_PARTS = {"steps": 64, "tensors": 16, "scales": 16, "errors": 16, "events": 16}
"""Parts of one rank that are read, by table: the last so many."""
_MEMORY = "1GB"
"""The training runs beside it."""


class Tail:
    """Use `look` around every set of queries; `close` in the end."""

    def __init__(self, run: RunDir, *, is_inference: bool = False) -> None:
        self.run = run
        self.n_ranks = 0
        """Ranks that have left files."""
        self.n_ranks_read = 0
        self._con = duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False})
        confine(self._con, _MEMORY)
        self._con.execute("set parquet_metadata_cache = true")
        self._con.execute("create schema stored")
        thresholds.set_variables(self._con, thresholds.resolve())
        self._con.execute(f"set variable is_inference = {is_inference}")
        for file in sql_files().values():
            if file.kind == "macro":
                self._con.execute(file.text)
        self._known: dict[str, GoodPart | BadFile] = {}
        self._copies: tempfile.TemporaryDirectory[str] | None = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Files that the last look has left out, one sentence each."""
        return tuple(found.message for found in self._known.values() if isinstance(found, BadFile))

    @contextlib.contextmanager
    def look(self) -> Iterator[None]:
        """Take the files that are there now; none of them is deleted inside the block.

        Raises:
            Fp8DebugError: the file `CURRENT` cannot be used.
            OSError: an object store that cannot be reached.
        """
        readers = self.run.storage.share(READERS_LOCK)
        try:
            names = {table: live_names(self.run.storage, table) for table in MOST_PARTS}
            ranks = self._ranks_read(names)
            wanted = {table: _newest(names[table], ranks, most) for table, most in MOST_PARTS.items()}
            self._forget({name for of_table in wanted.values() for name in of_table})
            for table, of_table in wanted.items():
                self._show(table, of_table)
            yield
        finally:
            if readers is not None:
                readers.release()

    def sql(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """All rows of a query on the `stored` views of `MOST_PARTS`, with every shipped macro at hand."""
        return self._con.execute(query, parameters).fetchall()

    def close(self) -> None:
        """Close the connection, and delete copies."""
        self._con.close()
        if self._copies is not None:
            self._copies.cleanup()

    def _ranks_read(self, names: dict[str, list[str]]) -> set[int]:
        parts = (parse_part(name) for of_table in names.values() for name in of_table)
        there = sorted({part.rank for part in parts if part is not None})
        last = len(there) - 1
        taken = {there[i * last // max(1, MOST_RANKS - 1)] for i in range(MOST_RANKS)} if last >= MOST_RANKS else there
        self.n_ranks, self.n_ranks_read = len(there), len(taken)
        return set(taken)

    def _forget(self, wanted: set[str]) -> None:
        """Files that have been merged, or are not among the last any more."""
        for name in self._known.keys() - wanted:
            del self._known[name]
            if self._copies is not None:
                Path(self._address(name)).unlink(missing_ok=True)

    def _show(self, table: str, names: Sequence[str]) -> None:
        new = {self._address(name): name for name in self._fetched([n for n in names if n not in self._known])}
        good, bad = sort_out(self._con, TABLES[table], list(new))
        self._known |= {new[part.path]: part for part in good} | {new[file.path]: file for file in bad}
        parts = [found for name in names if isinstance(found := self._known.get(name), GoodPart)]
        self._con.execute(f"create or replace view stored.{quote_name(table)} as {stored_select(TABLES[table], parts)}")

    def _fetched(self, names: Sequence[str]) -> Sequence[str]:
        """The same names; what is in an object store has been copied."""
        if self.run.storage.path is not None and names:
            from fp8debug.storage.objects import ObjectStorage

            assert isinstance(self.run.storage, ObjectStorage)
            self._copies = self._copies or tempfile.TemporaryDirectory(prefix="fp8debug-watch-")
            self.run.storage.fetch(names, Path(self._copies.name))
        return names

    def _address(self, name: str) -> str:
        return self.run.storage.address(name) if self._copies is None else str(Path(self._copies.name) / name)


def _newest(names: Iterable[str], ranks: set[int], most: int) -> list[str]:
    """The last parts of each rank; of files that hold several ranks, which are older, the last one."""
    of_rank: dict[int, list[str]] = defaultdict(list)
    merged: list[str] = []
    for name in names:
        part = parse_part(name)
        if part is None:
            merged = [name]
        elif part.rank in ranks:
            of_rank[part.rank].append(name)
    return [*merged, *(name for parts in of_rank.values() for name in parts[-most:])]
