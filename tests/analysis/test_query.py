"""Queries from outside, tried as an attacker would: refused, and nothing written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pytest

from fp8debug.analysis import Run, open_run
from fp8debug.analysis.query import admit, run_query
from fp8debug.errors import Fp8DebugError, UsageError

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder around the run, with files that nobody may read."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "secret.txt").write_text("secret")
    (folder / "secret.csv").write_text("a,b\n1,2\n")
    with duckdb.connect(str(folder / "other.db")) as other:
        other.execute("create table t as select 42 as a")
        other.execute(f"copy t to '{folder}/other.parquet'")
    return folder


@pytest.fixture(scope="module")
def run(synthetic_run: ModuleType, outside: Path) -> Iterator[Run]:
    written: SyntheticRun = synthetic_run.SyntheticRun(outside / "run")
    rng = np.random.default_rng(5)
    for step in range(3):
        x = rng.standard_normal((32, 32)).astype(np.float32)
        written.add("mlp", "x", x, step=step, keep_values=True)
    with open_run(written.write(), threads=1) as opened:
        yield opened


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "query",
    [
        "from tensors",
        "select layer, sqnr_db from tensor_errors order by sqnr_db",
        "explain select * from tensors",
        "explain analyze select * from tensors",
        "explain (format json) select 1",
        "describe tensor_errors",
        "summarize tensors",
        "show tables",
        "from candidates",
        "with t as (from values) select count(*) from t",
        "from whatif_current('E4M3', margin := 1)",
        "-- a comment\nselect 1;",
        "from query('select 1')",
    ],
)
def test_reading_is_admitted(run: Run, query: str) -> None:
    relation = run_query(run, query)
    assert relation.fetchall() or "candidates" in query


def test_several_queries_on_one_run(run: Run) -> None:
    assert run_query(run, "select count(*) from tensors").fetchall() == [(3,)]
    with pytest.raises(Fp8DebugError, match="tensorz"):
        run_query(run, "from tensorz")
    assert run_query(run, "from candidates").fetchall() == []
    assert run_query(run, "select count(*) from tensors").fetchall() == [(3,)]


REFUSED = [
    "copy (select 1) to '{run}/stolen.csv'",
    "copy tensors to '{run}/tensors/rank=0/part-000077.parquet'",
    "copy (select 1) to '{outside}/stolen.csv'",
    "explain analyze copy (select 1) to '{run}/stolen.csv'",
    "explain (analyze) copy (select 1) to '{run}/stolen.csv'",
    "explain /* x */ analyze -- y\n copy (select 1) to '{run}/stolen.csv'",
    "explain analyze --\rcopy (select 1) to '{run}/stolen.csv'",
    "EXPLAIN ANALYZE create table t as select 1",
    "explain analyze (copy (select 1) to '{run}/stolen.csv')",
    "attach '{run}/new.db'",
    "attach '{outside}/new.db' as other",
    "set threads = 7",
    "set allowed_directories = ['/']",
    "reset enable_external_access",
    "set variable underflow = 0.5",
    "install httpfs",
    "load httpfs",
    "pragma database_list",
    "pragma enable_profiling",
    "call enable_logging(storage := 'file', storage_path := '{run}/log')",
    "create table t as select 1",
    "create or replace view candidates as select 1",
    "drop view tensors",
    "insert into stored.layers select * from stored.layers",
    "export database '{run}/export'",
    "import database '{run}'",
    "use system",
    "checkpoint",
    "vacuum",
    "begin",
    "prepare p as select 1",
    "execute p",
    "select 1; select 2",
    "select 1; copy (select 1) to '{run}/stolen.csv'",
    "",
    " -- nothing\n",
    ";",
]


@pytest.mark.parametrize("query", REFUSED)
def test_everything_else_is_refused_before_it_runs(run: Run, outside: Path, query: str) -> None:
    before = snapshot(outside)
    text = query.format(run=run.path, outside=outside)
    with pytest.raises(Fp8DebugError):
        admit(text)
    with pytest.raises(Fp8DebugError):
        run_query(run, text)
    assert snapshot(outside) == before
    assert run_query(run, "select count(*) from tensors").fetchall() == [(3,)], "and the run is as it was"


CONFINED = [
    "from read_text('{outside}/secret.txt')",
    "from read_text('{run}/../secret.txt')",
    "from read_blob('{run}/../*')",
    "from read_csv('{outside}/secret.txt')",
    "from read_json('{outside}/secret.txt')",
    "from '{outside}/secret.txt'",
    "from '{outside}/secret.csv'",
    "from read_parquet('{outside}/other.parquet')",
    "from parquet_schema('{outside}/other.parquet')",
    "from glob('{outside}/*')",
    "from sniff_csv('{outside}/secret.csv')",
    "from read_duckdb('{outside}/other.db')",
    "from read_text('/etc/hostname')",
    "from duckdb_secrets()",
    "select getenv('HOME')",
    "from query('copy (select 1) to ''{run}/stolen.csv''')",
    "from enable_logging(storage := 'file', storage_path := '{run}/log')",
    "from enable_profiling(save_location := '{run}/profile')",
    "from json_execute_serialized_sql(json_serialize_sql('copy (select 1) to ''{run}/stolen.csv'''))",
    "with t as (insert into stored.layers select * from stored.layers returning *) from t",
    "from force_checkpoint('memory')",
]


@pytest.mark.parametrize("query", CONFINED)
def test_a_select_reaches_nothing_outside_the_run(run: Run, outside: Path, query: str) -> None:
    before = snapshot(outside)
    with pytest.raises((Fp8DebugError, duckdb.Error)):
        run_query(run, query.format(run=run.path, outside=outside)).fetchall()
    assert snapshot(outside) == before


def test_python_objects_are_no_tables(run: Run) -> None:
    secret = duckdb.sql("select 42 as answer")
    assert secret is not None
    with pytest.raises(Fp8DebugError, match="secret"):
        run_query(run, "from secret")


def test_the_message_says_what_is_allowed_and_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"COPY is refused: only SELECT, EXPLAIN, DESCRIBE and SUMMARIZE .* use -o"):
        admit("copy (select 1) to 'x.csv'")
    with pytest.raises(UsageError, match=r"exactly one SQL statement, got 2: SELECT, SELECT"):
        admit("select 1; select 2")
    with pytest.raises(Fp8DebugError, match=r"cannot parse the query: .*syntax error"):
        admit("selec 1")


def test_a_large_query_may_spill_outside_the_run(new_run: NewRun) -> None:
    with open_run(new_run().path, memory_limit="40MB", threads=1) as small:
        before = snapshot(Path(small.path))
        query = "select count(*) from (select i from range(1_500_000) t(i) order by hash(i), i::varchar)"
        assert run_query(small, "select max(i) from (" + query.removeprefix("select count(*) from (")).fetchall()
        assert snapshot(Path(small.path)) == before
