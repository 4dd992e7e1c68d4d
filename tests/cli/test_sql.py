"""`fp8debug sql`: every format, every way to give a run and a query, and nothing written where it must not be."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from fp8debug.cli.main import main

Golden = Callable[[str, str], None]

QUERY = (
    "select step, layer, sampled, loss, null as nothing, '' as empty, 'a,\"b\"' as quoted, [0.1::float, 2] as list, "
    "0.1::float as narrow, 1e300 as big, 'nan'::double as nan, 170141183460469231731687303715884105727 as huge, "
    "{'a': 1.5, 'b': date '2026-01-02'} as struct "
    "from steps, (values ('blocks.0.fc1'), ('[red]' || chr(27) || '[0m')) as layers(layer) "
    "where step < 2 order by step, layer"
)


class Sql:
    """`fp8debug sql` in this process, from inside one folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        got = main(["sql", *arguments])
        out, self.err = self._capsys.readouterr()
        assert got == code, self.err
        return out


@pytest.fixture
def sql(shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sql:
    """Run from inside the folder of the shared runs."""
    monkeypatch.chdir(shared)
    return Sql(shared, capsys)


@pytest.fixture
def latest(tmp_path: Path, synthetic_run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one run that is the latest one."""
    run = synthetic_run.SyntheticRun(tmp_path / "fp8debug-runs" / "train")
    run.add_row("steps", step=0, loss=2.5)
    run.write()
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Formats --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["table", "csv", "json", "jsonl"])
def test_formats(sql: Sql, golden: Golden, name: str) -> None:
    text = sql("healthy", QUERY, "--format", name)
    golden(f"sql.{'txt' if name == 'table' else name}", text)
    assert "\x1b" not in text or name == "csv", "only csv hands on what a name holds"


def test_text_formats_say_the_same(sql: Sql) -> None:
    rows = json.loads(sql("healthy", QUERY, "--format", "json"))
    assert [json.loads(line) for line in sql("healthy", QUERY, "--format", "jsonl").splitlines()] == rows
    assert rows[0]["narrow"] == 0.10000000149011612 and rows[0]["huge"] == 2**127 - 1 and rows[0]["nan"] is None


def test_without_rows(sql: Sql) -> None:
    query = "select step, loss from steps where false"
    assert sql("healthy", query) == "step  loss\n"
    assert sql("healthy", query, "--format", "csv") == "step,loss\n"
    assert sql("healthy", query, "--format", "json") == "[]\n"
    assert sql("healthy", query, "--format", "jsonl") == ""


def test_equal_names_stay_apart_where_names_are_keys(sql: Sql) -> None:
    assert json.loads(sql("healthy", "select 1 as a, 2 as a, 3 as a_1", "--format", "json")) == [
        {"a": 1, "a_1": 2, "a_1_1": 3}
    ]


def test_many_rows(sql: Sql) -> None:
    out = sql("healthy", "select i from range(10000) as t(i) order by i", "--format", "csv")
    assert out.splitlines() == ["i", *map(str, range(10000))]


def test_plans_are_drawn(sql: Sql) -> None:
    assert "\\n" not in sql("healthy", "explain select count(*) from steps")


def test_parquet_to_a_pipe(shared: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "fp8debug", "sql", "healthy", "select step, loss as a, step as a from steps", "--format",
         "parquet"], cwd=shared, capture_output=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    table = pq.read_table(io.BytesIO(ran.stdout))
    assert table.column_names == ["step", "a", "a_1"] and table.num_rows == 24


def test_a_reader_that_leaves_is_no_traceback(shared: Path) -> None:
    command = f"{sys.executable} -m fp8debug sql healthy 'select i from range(200000) as t(i)' --format csv | head -1"
    ran = subprocess.run(["bash", "-c", command], cwd=shared, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("i\n", "")


# Which run, which query -----------------------------------------------------------------------------------------------


def test_a_query_alone_asks_the_latest_run(latest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sql = Sql(latest, capsys)
    assert sql("from steps select loss", "--format", "csv") == "loss\n2.5\n"


def test_query_from_file_and_standard_input(
    latest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = Sql(latest, capsys)
    (latest / "q.sql").write_text("-- comment\nselect 1 as é\n", encoding="utf-8")
    assert sql("-f", "q.sql", "--format", "csv") == "é\n1\n"
    assert sql("fp8debug-runs/train", "-f", "q.sql", "--format", "csv") == "é\n1\n"
    for arguments in (["-"], ["fp8debug-runs/train", "-"], ["-f", "-"]):
        monkeypatch.setattr("sys.stdin", io.StringIO("select 2 as a"))
        assert sql(*arguments, "--format", "csv") == "a\n2\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere/run"], 1, "no such run: nowhere/run"),
        (["nowhere", "from steps"], 1, "no such run"),
        (["candidates"], 2, "'candidates' is neither an existing run directory nor a query"),
        (["healthy", "from steps", "-f", "q.sql"], 2, "two queries"),
        (["healthy", "-f", "q.sql"], 1, "cannot read the query file q.sql"),
        (["healthy", ""], 2, "the query is empty"),
        (["healthy", "select nope from steps"], 1, 'Referenced column "nope" not found'),
        (["healthy", "selec 1"], 1, "syntax error"),
        (["healthy", "select error('boom')"], 1, "boom"),
        (["healthy", "select 1; select 2"], 2, "expected exactly one SQL statement, got 2"),
        (["healthy", "select 1", "--format", "xml"], 2, "expected one of table, csv, json, jsonl, parquet"),
        (["from steps"], 1, "no run found"),
    ],
)
def test_what_cannot_be_asked(sql: Sql, arguments: list[str], code: int, message: str) -> None:
    assert sql(*arguments, code=code) == ""
    assert message in sql.err
    assert "Traceback" not in sql.err


@pytest.mark.parametrize(
    "query",
    ["copy (select 1) to 'healthy/steps/x.parquet'", "create table t as select 1", "attach 'x.db'", "set threads = 1",
     "install httpfs", "explain analyze copy (select 1) to 'x.csv'", "pragma database_list", "call checkpoint()"],
)  # fmt: skip
def test_nothing_but_reading(sql: Sql, query: str) -> None:
    before = sorted(sql.folder.rglob("*"))
    sql("healthy", query, code=2)
    assert "refused" in sql.err
    assert sorted(sql.folder.rglob("*")) == before


def test_nothing_outside_the_run(sql: Sql) -> None:
    sql("healthy", f"from read_text('{sql.folder}/faulty/run.json')", code=1)
    assert "cannot run the query" in sql.err
    assert "1" in sql("healthy", f"select count(*) from read_text('{sql.folder}/healthy/run.json')")


# Files ----------------------------------------------------------------------------------------------------------------


def test_files(sql: Sql, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    assert sql("healthy", "select 1 as a", "-o", str(target)) == ""
    assert sql.err == f"fp8debug: wrote {target} (1 row)\n"
    assert target.read_text() == "a\n1\n", "the ending gives the format"
    sql("healthy", "select 2 as a", "-o", str(target), code=2)
    assert f"-o {target} exists already; add --force" in sql.err
    assert target.read_text() == "a\n1\n"
    sql("healthy", "select 2 as a", "-o", str(target), "--force", "--format", "jsonl")
    assert target.read_text() == '{"a": 2}\n'
    sql("healthy", "from steps", "-o", str(tmp_path / "x.parquet"))
    assert pq.read_table(tmp_path / "x.parquet").num_rows == 24
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.parquet"], "no temporary file is left"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("healthy/steps/x.csv", "is inside the run directory"),
        (".", "is a folder"),
        ("no/x.csv", "there is no folder no"),
    ],
)
def test_files_that_are_not_written(sql: Sql, target: str, message: str) -> None:
    sql("healthy", "select 1", "-o", target, code=2)
    assert message in sql.err
    assert not Path(target).is_file()


def test_a_failing_query_leaves_the_old_file(sql: Sql, tmp_path: Path) -> None:
    target = tmp_path / "x.csv"
    target.write_text("old")
    sql("healthy", "select error('boom') from steps", "-o", str(target), "--force", code=1)
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


# Runs that are being written, and the list of views -------------------------------------------------------------------


def test_a_run_that_is_still_written(
    tmp_path: Path, synthetic_run: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    sql = Sql(tmp_path, capsys)
    assert sql(str(run.path), "select count(*) as n from steps", "--format", "csv") == "n\n0\n"
    assert "nothing recorded yet" in sql.err
    for step in range(2):
        run.add_row("steps", step=step, loss=1.0)
        run.write()
        (run.path / "steps" / "rank=0" / ".part-000009.parquet.tmp1").write_bytes(b"half")
        assert sql(str(run.path), "select count(*) as n from steps", "--format", "csv") == f"n\n{step + 1}\n"
        assert sql.err == ""
    (run.path / "steps" / "rank=0" / "part-000009.parquet").write_bytes(b"half")
    assert sql(str(run.path), "select count(*) as n from steps", "--format", "csv") == "n\n2\n"
    assert "part-000009.parquet is left out: not a readable Parquet file" in sql.err


def test_views_are_listed(sql: Sql) -> None:
    text = sql("healthy")
    assert max(map(len, text.splitlines())) <= 80
    for view in ("steps", "layers", "tensors", "tensor_errors", "layer_summary", "candidates", "watch", "histograms"):
        assert f"\n\n{view}\n  " in text
    assert "    sqnr_db " in text and "from whatif(fmt, scale_of)" in text
    assert sql() == text.replace("fp8debug sql healthy", "fp8debug sql RUN_DIR"), "views are the same without a run"


def test_views_as_data(sql: Sql) -> None:
    rows = json.loads(sql("--format", "json"))
    (loss,) = [row for row in rows if (row["view"], row["column"]) == ("steps", "loss")]
    assert loss["type"] == "double" and loss["meaning"].startswith("mean over the step's micro-batches")
    assert all(row["meaning"] for row in rows)
    sql("--format", "parquet", code=2)


def test_help_mentions_what_is_refused(sql: Sql) -> None:
    assert "read-only" in sql("--help")


def test_nothing_heavy_for_usage_errors(shared: Path) -> None:
    code = "import sys\nfrom fp8debug.cli.main import main\nassert main(['sql', 'a b', '--format', 'x']) in (1, 2)\n"
    code += "assert not {'duckdb', 'pyarrow', 'numpy'} & sys.modules.keys()"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=shared, env=dict(os.environ), capture_output=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
