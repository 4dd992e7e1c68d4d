"""Open a run directory as a DuckDB connection with views."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from types import TracebackType
from typing import Any

import duckdb

from fp8debug.analysis import thresholds as rule_thresholds
from fp8debug.analysis.copying import LARGE_TABLES, LocalCopy
from fp8debug.analysis.displayed import Displayed
from fp8debug.analysis.engine import DuckDBEngine, Engine, Source, engine_of, reduce_into
from fp8debug.analysis.engine.reduction import reduction
from fp8debug.analysis.engine.tables import FILLED_BY, given_of
from fp8debug.analysis.memory import confine, parse_size
from fp8debug.analysis.merge.layers import RankedLayer, merged_layers
from fp8debug.analysis.merge.presence import Presence, presence
from fp8debug.analysis.parts import (
    BadFile,
    GoodPart,
    create_stored_views,
    explained,
    quote_name,
    sort_out,
    stored_select,
)
from fp8debug.analysis.scope import Scope, restrict
from fp8debug.analysis.views import Views, sql_files
from fp8debug.errors import UsageError, nearest
from fp8debug.generations import READERS_LOCK
from fp8debug.rundir import Manifest, RunDir, run_at
from fp8debug.schema import TABLES
from fp8debug.storage import Held, RunPath

_MOST_COMPARED = 4096
"""Keys of a join that are looked up in the statistics of row groups one by one."""


class Run(Displayed):
    """An open run. Use it in a `with` statement, or call `close`.

    Attributes:
        con: in-memory DuckDB connection with every view created; `sql` and `table` create only what they name.
        path: the run directory, links resolved.
        manifest: what `run.json` says.
        problems: parts that were left out; the view `events` has them too.
        thresholds: the numbers in force for the rules.
        is_empty: True when nothing was recorded yet.
        layers: those of the model, over all ranks.
        presence: which ranks left records; None for a run of one rank.
    """

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        path: RunPath,
        manifest: Manifest,
        problems: list[BadFile],
        thresholds: dict[str, float],
        parts: Mapping[str, Sequence[GoodPart]],
        layers: tuple[RankedLayer, ...] = (),
        presence: Presence | None = None,
        engine: Engine | None = None,
        config: Mapping[str, Any] | None = None,
        owns_engine: bool = False,
        readers: Held | None = None,
        copy: LocalCopy | None = None,
    ) -> None:
        self._con = con
        self._copy = copy
        self._not_copied = set() if copy is None else set(LARGE_TABLES)
        self._readers = readers
        self._engine = engine or DuckDBEngine()
        self._owns_engine = owns_engine
        store = None if copy is None else (str(copy.run.folder), str(path))
        self._source = Source(self.prepare, parts, config or {}, store)
        fill = {table: partial(self._fill, table) for table in FILLED_BY}
        are_several = presence is not None and presence.are_several
        self._views = _views_of_ranks(con, manifest, fill) if are_several else Views(con, fill=fill)
        self._paths = _paths(parts)
        self.layers = layers
        self.presence = presence
        self.path = path
        self.manifest = manifest
        self.problems = problems
        self.thresholds = thresholds
        self.is_empty = not any(parts.values())

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """The connection, with every view and macro created, and all of the run at hand."""
        self._copy_named_in(" ".join(self._not_copied))
        self._views.require_all()
        return self._con

    @property
    def folder(self) -> RunPath:
        """The folder whose files the connection reads: of the run, or of its copy."""
        return self.path if self._copy is None else self._copy.run.path

    @property
    def has_groups(self) -> bool:
        """Whether several ranks left records, which are merged."""
        return self.presence is not None and self.presence.are_several

    @property
    def notice(self) -> str | None:
        """One sentence when there is nothing to analyse, else None."""
        if not self.is_empty:
            return None
        if self.problems:
            return f"nothing readable in {self.path}: all {len(self.problems)} Parquet files were left out"
        return f"nothing recorded yet in {self.path} (status: {self.manifest.status})"

    def sql(self, query: str, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """Run one SELECT; `$name` in it is taken from `parameters`. For our own queries: nothing is refused."""
        return self.prepare(query).sql(query, params=parameters)

    def prepare(self, query: str) -> duckdb.DuckDBPyConnection:
        """The connection, with the views and macros that `query` names."""
        self._copy_named_in(query)
        self._views.require_named_in(query)
        return self._con

    def table(self, name: str) -> duckdb.DuckDBPyRelation:
        """A view by name.

        Raises:
            UsageError: there is no such view.
        """
        try:
            return self.sql(f"from {quote_name(name)}")
        except duckdb.CatalogException as error:
            views = [file.name for file in sql_files().values() if not file.is_internal and "macro" not in file.kind]
            if name in views:
                raise
            near = nearest(name, views)
            hint = f"nearest names: {', '.join(near)}" if near else "`fp8debug sql` lists them"
            raise UsageError(f"there is no view {name!r}; {hint}") from error

    def _copy_named_in(self, query: str) -> None:
        """Copy the large tables that a query may name, where the run is in an object store."""
        for table in [name for name in self._not_copied if re.search(rf"\b{name}\b", query, re.IGNORECASE)]:
            assert self._copy is not None
            self._not_copied.remove(table)
            self._copy.copy_table(table)
            good, bad = sort_out(self._con, TABLES[table], [str(path) for path in self._copy.run.parts(table)])
            self.problems += _in_store(bad, self._copy)
            rows = self._con.execute(
                "select count(*) from duckdb_views() where schema_name = 'stored' and view_name = $name",
                {"name": f"all_{table}"},
            ).fetchall()
            name = quote_name(f"all_{table}" if rows[0][0] else table)
            self._con.execute(f"create or replace view stored.{name} as {stored_select(TABLES[table], good)}")

    def reduce(self, name: str, given: str, into: str) -> None:
        """Insert what the reduction called `name` says of the rows of the query `given` into the table `into`.

        It is computed by the engine that the run was opened with.

        Raises:
            Fp8DebugError: the engine cannot compute it.
        """
        reduce_into(into, reduction(name), given, self._engine, self._source)

    def _fill(self, table: str, _: duckdb.DuckDBPyConnection) -> None:
        self.reduce(FILLED_BY[table], given_of(table), table)

    def close(self) -> None:
        """Close the connection; relations made from it end with it. An engine that was named by its text ends too."""
        self._con.close()
        if self._owns_engine:
            self._engine.close()
        if self._readers is not None:
            self._readers.release()
        if self._copy is not None:
            self._copy.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, duckdb.Error):
            told = explained(error, self._paths)
            if told is not error:
                raise told from error


def open_run(
    path: str | os.PathLike[str],
    *,
    thresholds: Mapping[str, float] | None = None,
    memory_limit: str | None = None,
    threads: int | None = None,
    scope: Scope | None = None,
    engine: Engine | str | None = None,
) -> Run:
    """Open a run directory, finished or still being written.

    Args:
        path: the run directory, or its URL in an object store.
        thresholds: numbers that replace defaults of the rules, by name (see `thresholds.THRESHOLDS`).
        memory_limit: what DuckDB may take, such as `500MB` or `2GB`; by default 4 GB, or 80 % of the machine where
            that is less. What does not fit goes to a folder below the system's temporary directory.
        threads: for DuckDB; its default is one a core.
        scope: look at these steps, layers and recipes only.
        engine: what computes the heavy part: `duckdb` in this process (the default), `ray` on a cluster of this
            machine's cores, `ray:ADDRESS` on a cluster that is there, or an engine, which the caller closes.

    Raises:
        Fp8DebugError: no such run, an unreadable manifest, or a run of a newer schema.
        UsageError: an unknown threshold, a bad memory limit, a scope that this run has nothing of, an unknown engine,
            or one that is not to be had.
    """
    numbers = rule_thresholds.resolve(thresholds)
    run_dir = run_at(path)
    manifest = run_dir.read_manifest()
    config = _config(memory_limit, threads)
    chosen = engine_of(engine) if isinstance(engine, str) else engine
    copy = _copied(run_dir)
    con = duckdb.connect(config=config)
    # Shared before files are listed: none of them is deleted, by who merges parts, until it is given back.
    readers = run_dir.storage.share(READERS_LOCK)
    parts: dict[str, list[GoodPart]] = {}
    try:
        confine(con, memory_limit)
        # Views stand on views: without the cache each of them reads the same footers again.
        con.execute("set parquet_metadata_cache = true")
        # The statistics of row groups are compared with each record that is wanted, not with their range alone.
        con.execute(f"set dynamic_or_filter_threshold = {_MOST_COMPARED}")
        problems, parts = create_stored_views(con, run_dir if copy is None else copy.run)
        problems = problems if copy is None else _in_store(problems, copy)
        ranks = (run_dir if copy is None else copy.run).read_ranks()
        found = presence(con, run_dir, manifest, ranks)
        if scope is not None and any(parts.values()):
            restrict(con, scope, manifest)
        if found is not None:  # histories need all steps, whatever the scope
            con.execute("create view if not exists stored.all_tensors as from stored.tensors")
        layers = merged_layers(manifest, ranks)
        _create_memory_tables(con, layers, found, problems)
        rule_thresholds.set_variables(con, numbers)
        con.execute(f"set variable is_inference = {bool(manifest.options.get('inference'))}")
        con.execute(f"set variable is_part = {scope is not None}")
        con.execute("set variable emulates = $recipe::varchar", {"recipe": manifest.options.get("emulate")})
    except BaseException as error:
        con.close()
        if readers is not None:
            readers.release()
        if chosen is not None and isinstance(engine, str):
            chosen.close()
        if copy is not None:
            copy.close()
        if isinstance(error, duckdb.Error):
            raise explained(error, _paths(parts)) from error
        raise
    return Run(
        con, run_dir.path, manifest, problems, numbers, parts, layers, found, chosen, config, isinstance(engine, str),
        readers, copy,
    )  # fmt: skip


def _copied(run: RunDir) -> LocalCopy | None:
    """A copy of a run in an object store, else None."""
    return None if run.storage.path is None else LocalCopy(run)


def _in_store(problems: Sequence[BadFile], copy: LocalCopy) -> list[BadFile]:
    """The same under the addresses that a person knows."""
    return [replace(problem, path=copy.address_of(problem.path)) for problem in problems]


def _paths(parts: Mapping[str, Sequence[GoodPart]]) -> list[str]:
    return [part.path for of_table in parts.values() for part in of_table]


def _views_of_ranks(
    con: duckdb.DuckDBPyConnection, manifest: Manifest, fill: Mapping[str, Callable[[duckdb.DuckDBPyConnection], None]]
) -> Views:
    """Those of a run of several ranks."""
    from fp8debug.analysis.merge.views import filled_tables, views_of_ranks

    return Views(con, views_of_ranks(), {**fill, **filled_tables(manifest)})


def _config(memory_limit: str | None, threads: int | None) -> dict[str, str | bool | int | float | list[str]]:
    config: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "python_enable_replacements": False,
    }
    if memory_limit is not None:
        config["memory_limit"] = f"{parse_size(memory_limit)}B"
    if threads is not None:
        config["threads"] = threads
    return config


def _create_memory_tables(
    con: duckdb.DuckDBPyConnection,
    layers: Sequence[RankedLayer],
    found: Presence | None,
    problems: Sequence[BadFile],
) -> None:
    """What is not in Parquet: the layers, ranks that are missing, and the files that were left out."""
    con.execute(
        """
        create table stored.layers as
        select unnest($layers::struct(name varchar, raw_name varchar, class_name varchar, root varchar,
                                      in_features bigint, out_features bigint, matched boolean, emulated varchar,
                                      backend varchar, kind varchar, ranks int[])[], recursive := true)
        """,
        {"layers": [asdict(layer.info) | {"ranks": layer.ranks} for layer in layers]},
    )
    con.execute(
        """
        create table stored.rank_notes as
        select unnest($notes::struct(rank int, step bigint, message varchar)[], recursive := true)
        """,
        {"notes": [asdict(note) for note in found.notes] if found is not None else []},
    )
    con.execute(
        """
        create table stored.bad_files as
        select unnest($files::struct(path varchar, table_name varchar, message varchar)[], recursive := true)
        """,
        {"files": [{"path": str(bad.path), "table_name": bad.table, "message": bad.message} for bad in problems]},
    )
