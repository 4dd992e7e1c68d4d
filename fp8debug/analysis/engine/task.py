"""What one process does with one partition: plain functions of plain data, which travel to the process themselves.

Nothing of this package is imported here, so that the machines of a cluster need DuckDB and pyarrow, not fp8debug.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Task:
    """All that it takes to answer the partial query for one partition."""

    files: tuple[str, ...]
    """Files that are read."""
    statements: tuple[str, ...]
    """Views, macros and variables that the query stands on, in order."""
    query: str
    config: Mapping[str, Any]
    """Of the connection."""
    store: tuple[str, str] | None = None
    """Folder that the asking process copied the run to, and the URL that it copied from; None: it is no copy."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a task."""

    table: pa.Table | None
    host: str
    missing: str | None = None
    """A file that this machine does not see."""
    error: str | None = None
    """Why there is no table, otherwise."""


def answer(task: Task, given: pa.Table, n_threads: int | None = None) -> Answer:
    """Open a connection of its own and ask the query.

    Args:
        task: what to ask.
        given: the rows called `given` in it.
        n_threads: the processor's cores that this process may use; None: as in the task's own configuration.
    """
    host = socket.gethostname()
    missing = next((path for path in task.files if not os.path.exists(path)), None)
    if missing is not None and task.store is None:
        return Answer(None, host, missing=missing)
    config = dict(task.config) if n_threads is None else _share(task.config, n_threads)
    with tempfile.TemporaryDirectory(prefix="fp8debug-") as spill:
        try:
            statements = task.statements if missing is None else _over_fetched(task, spill)
            with duckdb.connect(config={**config, "temp_directory": spill}) as con:
                con.register("given", given)
                for statement in statements:
                    con.execute(statement)
                return Answer(con.sql(task.query).to_arrow_table(), host)
        except (duckdb.Error, OSError, ImportError) as error:
            return Answer(None, host, error=f"{type(error).__name__}: {error}".splitlines()[0])


def _share(config: Mapping[str, Any], n_threads: int) -> dict[str, Any]:
    """The configuration for one of several processes of a machine: no more threads and memory than its share."""
    n_bytes = 0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * n_threads / (os.cpu_count() or 1)
    return {"memory_limit": f"{int(n_bytes / 2**20)}MiB", **config, "threads": n_threads}


def _over_fetched(task: Task, folder: str) -> list[str]:
    """The statements over files that this machine fetches from the store, since it does not see the copy."""
    import fsspec

    assert task.store is not None
    copy, url = task.store
    here = {path: path.replace(copy, f"{folder}/run", 1) for path in task.files}
    for directory in {os.path.dirname(path) for path in here.values()}:
        os.makedirs(directory, exist_ok=True)
    store = fsspec.filesystem(url.partition("://")[0])
    store.get([path.replace(copy, url, 1) for path in here], list(here.values()))
    return [statement.replace(copy, f"{folder}/run") for statement in task.statements]
