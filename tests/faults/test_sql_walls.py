"""`fp8debug sql` against hostile queries, through the command line: admission refuses, and the locks behind it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import duckdb
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.query import lock, run_query
from fp8debug.cli.main import main
from fp8debug.errors import Fp8DebugError


@pytest.fixture(scope="module")
def run(synthetic_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside a file that nobody may read."""
    place = tmp_path_factory.mktemp("place")
    (place / "secret.csv").write_text("key\nhunter2\n")
    written = synthetic_run.SyntheticRun(place / "run")
    written.add_row("steps", step=0, loss=1.0)
    path: Path = written.write()
    return path


def content(place: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


ADMISSION = [
    "copy (select 1) to '{run}/x.csv'",
    "copy steps from '{run}/../secret.csv'",
    "COPY (select 1) TO '/dev/stdout'",
    "with t as (select 1) copy t to '{run}/x.csv'",
    "explain analyze copy (select 1) to '{run}/x.csv'",
    "explain (analyze, format json) create table t as select 1",
    "attach '{run}/../x.db'",
    "attach ':memory:' as m",
    "install httpfs",
    "load '{run}/x.duckdb_extension'",
    "pragma enable_external_access",
    "set enable_external_access = true",
    "reset lock_configuration",
    "call pragma_version()",
    "prepare p as copy (select 1) to '{run}/x.csv'",
    "execute p",
    "create secret (type s3)",
    "export database '{run}/x'",
    "select 1; copy (select 1) to '{run}/x.csv'",
    "copy (select 1) to '{run}/x.csv'; select 1",
    "select 1 /* ; */ ; -- x\n attach '{run}/x.db'",
    "with t as (insert into steps values (1) returning *) from t",
    "merge into steps using steps on true when matched then delete",
]
CONFINED = [
    "from '{run}/../secret.csv'",
    "from read_csv('{run}/../secret.csv')",
    "from read_text(['{run}/../secret.csv'])",
    "from read_blob('{run}/../*')",
    "from glob('{run}/../*')",
    "from glob('/etc/*')",
    "from '/etc/passwd'",
    "from read_text('/proc/self/environ')",
    "from read_csv('/dev/stdin')",
    "from read_csv('http://127.0.0.1:9/x.csv')",
    "from 's3://bucket/x.parquet'",
    "from query('from read_text(''{run}/../secret.csv'')')",
    "select (select content from read_text('{run}/../secret.csv')) from steps",
    "with t as materialized (from read_text('{run}/../secret.csv')) from t",
    "from parquet_metadata('{run}/../secret.csv')",
    "from read_duckdb('{run}/../secret.csv')",
    "describe from '{run}/../secret.csv'",
    "summarize from '{run}/../secret.csv'",
    "explain analyze from '{run}/../secret.csv'",
]


@pytest.mark.parametrize(("queries", "codes"), [(ADMISSION, (1, 2)), (CONFINED, (1,))], ids=["writes", "reads"])
def test_refused_and_nothing_happened(
    run: Path, queries: list[str], codes: tuple[int, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    before = content(run.parent)
    for query in queries:
        assert main(["sql", str(run), query.format(run=run), "--format", "csv"]) in codes, query
        out, err = capfd.readouterr()
        assert out == "" and err.startswith("fp8debug: ") and "hunter2" not in err, query
        assert content(run.parent) == before, query


LOCKED = [
    "copy (select 1) to '{run}/../x.csv'",
    "copy (select 1) to '/tmp/fp8debug-x.csv'",
    "attach '{run}/../x.db'",
    "install httpfs",
    "load httpfs",
    "set enable_external_access = true",
    "set allowed_directories = ['/']",
    "set lock_configuration = false",
    "set temp_directory = '{run}/x'",
    "pragma enable_external_access",
    "from '{run}/../secret.csv'",
    "export database '{run}/../x'",
]


def test_the_locks_hold_without_admission(run: Path) -> None:
    before = content(run.parent)
    with open_run(run, threads=1) as opened:
        con = opened.con
        lock(con, run)
        for query in LOCKED:
            with pytest.raises(duckdb.Error):
                con.execute(query.format(run=run))
        assert con.execute("select loss from steps").fetchall() == [(1.0,)]
        con.execute("begin transaction read only")
        for query in ("create table t as select 1", "insert into stored.layers from stored.layers", "drop view steps"):
            with pytest.raises(duckdb.Error):
                con.execute(query)
            con.execute("rollback")
            con.execute("begin transaction read only")
    assert content(run.parent) == before


def test_a_query_that_wants_more_memory_than_there_is(run: Path) -> None:
    with open_run(run, threads=1, memory_limit="40MB") as small, pytest.raises(Fp8DebugError, match="memory"):
        try:
            run_query(small, "select list(i) from range(100_000_000) t(i)").fetchall()
        except duckdb.Error as error:
            raise Fp8DebugError(str(error)) from error


def test_what_is_explained_is_found_in_any_script(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Offsets of tokens are of bytes: letters of two bytes must not move what is looked at."""
    assert main(["sql", str(run), "explain /* äöü日本語 */ select '日本語' as é from steps"]) == 0
    assert main(["sql", str(run), f"explain /* äöü日本語 */ analyze copy (select '日') to '{run}/x.csv'"]) == 2
    assert "COPY is refused" in capsys.readouterr().err
    assert main(["sql", str(run), "select '\udcff'"]) == 1, "bytes that are no UTF-8"


ENDLESS = "with recursive t as (select 1 as i union all select i + 1 from t) select count(*) from t"


def test_ctrl_c_ends_a_query_that_would_not(run: Path) -> None:
    """The watcher must hear of the signal while DuckDB computes, not afterwards."""
    command = f"""
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored
from fp8debug.analysis import query
admit = query.admit
def admitted(sql):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    return admit(sql)
query.admit = admitted
from fp8debug.cli.main import main
sys.exit(main(["sql", {str(run)!r}, {ENDLESS!r}]))
"""
    began = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode in (130, -signal.SIGINT), ran
    assert "Traceback" not in ran.stderr and ran.stdout == ""
    assert time.monotonic() - began < 60
