"""What an engine is asked, and what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb

from fp8debug.analysis.engine.reduction import Reduction
from fp8debug.analysis.parts import GoodPart


@dataclass(frozen=True, slots=True)
class Source:
    """An open run, as far as an engine has to know it."""

    prepare: Callable[[str], duckdb.DuckDBPyConnection]
    """Its connection, with the views and macros that a query names."""
    parts: Mapping[str, Sequence[GoodPart]]
    """By table, the files that the connection reads."""
    config: Mapping[str, Any]
    """What the connection was opened with."""
    store: tuple[str, str] | None = None
    """Folder that the run was copied to, and the URL that it was copied from; None: it is no copy."""


class Engine(Protocol):
    """Asks the partial query of a reduction of every partition, and the merge query of all answers."""

    def fill(self, target: str, reduction: Reduction, source: Source) -> None:
        """Insert the answer into the table `target` of the run's connection, where the table `given` is.

        Raises:
            Fp8DebugError: it cannot be computed there, with the reason.
        """

    def close(self) -> None:
        """Let go of what the engine started itself."""


def reduce_into(target: str, reduction: Reduction, given: str, engine: Engine, source: Source) -> None:
    """Insert what a reduction says of the rows of the query `given` into the table `target`.

    The rows have the columns that the partial query names, `segment`, `rank` and `seq` among them; of a record with no
    row nothing is asked.

    Raises:
        Fp8DebugError: the engine cannot compute it.
    """
    con = source.prepare(given)
    con.execute(f"create or replace temp table given as {given}")
    try:
        if con.execute("select 1 from given limit 1").fetchall():
            engine.fill(target, reduction, source)
    finally:
        con.execute("drop table given")
