"""Opening a run: finished, growing, empty, damaged or not a run at all."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.thresholds import THRESHOLDS
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.formats import E4M3, E5M2, Format
from fp8debug.schema import TABLES

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

ONES = np.ones((8, 8), np.float32)
TWOS = 2 * ONES


def test_no_such_run(tmp_path: Path) -> None:
    with pytest.raises(Fp8DebugError, match=r"no such run: .*nowhere.*fp8debug runs"):
        open_run(tmp_path / "nowhere")


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(Fp8DebugError, match=r"not a run directory"):
        open_run(tmp_path)


def test_a_run_of_a_newer_schema(new_run: NewRun) -> None:
    path = new_run().path
    manifest = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(manifest | {"schema_version": 99}))
    with pytest.raises(Fp8DebugError, match=r"schema version 99.*upgrade fp8debug"):
        open_run(path)


def test_nothing_recorded_yet(new_run: NewRun) -> None:
    with open_run(new_run().path) as run:
        assert run.is_empty
        assert run.notice is not None
        assert run.notice.startswith("nothing recorded yet in")
        for table in TABLES:
            assert run.table(table).fetchall() == []
        assert run.sql("from candidates").fetchall() == []


def test_a_run_that_is_still_being_written(new_run: NewRun) -> None:
    written = new_run()
    written.add("mlp", "x", ONES, step=0)
    written.write()
    for table in ("tensors", "errors"):
        (written.run_dir.table_folder(table, 0) / ".part-000001.parquet.tmp77").write_bytes(b"PAR1 half of it")
    with open_run(written.path) as early:
        written.add("mlp", "x", ONES, step=1)
        written.write()
        steps = "select list(distinct step order by step) from tensors"
        assert early.sql(steps).fetchall() == [([0],)], "one listing: later parts do not appear half way"
        assert early.problems == []
        with open_run(written.path) as later:
            assert later.sql(steps).fetchall() == [([0, 1],)]


def test_parts_of_all_ranks_are_read(new_run: NewRun) -> None:
    written = new_run()
    for rank in (0, 1, 10):
        written.add("mlp", "x", ONES, step=0, rank=rank)
    with open_run(written.write()) as run:
        assert run.sql("select rank from tensors order by rank").fetchall() == [(0,), (1,), (10,)]


def test_damaged_and_foreign_files_are_named_and_the_rest_is_read(new_run: NewRun) -> None:
    written = new_run()
    for step in range(4):
        written.add("mlp", "x", ONES, step=step)
        written.write()
    parts = written.run_dir.parts("tensors")
    parts[1].write_bytes(parts[1].read_bytes()[:-20])
    parts[2].write_bytes(b"")
    foreign = written.run_dir.part_path("tensors", 0, 9)
    pq.write_table(pa.table({"step": [1], "colour": ["red"]}), foreign)
    retyped = written.run_dir.part_path("errors", 0, 9)
    table = pq.read_table(written.run_dir.parts("errors")[0])
    index = table.schema.get_field_index("sum_x2")
    pq.write_table(table.set_column(index, "sum_x2", table["sum_x2"].cast(pa.float32())), retyped)
    with open_run(written.path) as run:
        assert not run.is_empty
        assert run.notice is None
        bad = {Path(problem.path).name: problem.reason for problem in run.problems}
        assert bad.keys() == {"part-000001.parquet", "part-000002.parquet", "part-000009.parquet"}
        assert len(run.problems) == 4
        assert "not a readable Parquet file" in bad["part-000001.parquet"]
        reasons = sorted(p.reason for p in run.problems if Path(p.path).name == "part-000009.parquet")
        assert "not a part of table errors: sum_x2 is FLOAT, expected DOUBLE" in reasons[0]
        assert "not a part of table tensors: it has no column segment" in reasons[1]
        assert run.sql("select list(step order by step) from tensors").fetchall() == [([0, 3],)]
        messages = [row[0] for row in run.sql("select message from events where kind = 'bad_file'").fetchall()]
        for path in (parts[1], parts[2], foreign, retyped):
            assert any(str(path) in message for message in messages)


def test_only_damaged_files(new_run: NewRun) -> None:
    written = new_run()
    written.run_dir.table_folder("tensors", 0).mkdir(parents=True)
    written.run_dir.part_path("tensors", 0, 0).write_bytes(b"not Parquet")
    with open_run(written.path) as run:
        assert run.is_empty
        assert run.notice is not None
        assert "all 1 Parquet files were left out" in run.notice


def test_one_bad_file_among_many_is_found(new_run: NewRun) -> None:
    written = new_run()
    for step in range(17):
        written.add("mlp", "x", ONES, step=step, sampled=False)
        written.write()
    parts = written.run_dir.parts("tensors")
    parts[11].write_bytes(b"PAR1")
    with open_run(written.path) as run:
        assert [problem.path for problem in run.problems] == [str(parts[11])]
        assert run.sql("select count(*) from tensors").fetchall() == [(16,)]


@pytest.mark.parametrize("name", ["run [1]", "a*b?", "it's", "rank=7"])
def test_any_folder_name_is_read(new_run: NewRun, name: str) -> None:
    written = new_run(name)
    written.add("mlp", "x", ONES, step=0, rank=3)
    with open_run(written.write()) as run:
        assert run.sql("select rank from tensors").fetchall() == [(3,)]
        assert run.problems == []


def test_a_resumed_run_keeps_the_last_segment_of_each_step(new_run: NewRun) -> None:
    written = new_run()
    for step in range(6):
        written.add("mlp", "x", ONES, step=step, segment=0, keep_values=True)
        written.add_row("steps", step=step, segment=0, loss=1.0)
    for step in range(4, 8):
        written.add("mlp", "x", TWOS, step=step, segment=1, keep_values=True)
        written.add_row("steps", step=step, segment=1, loss=2.0)
    written.add_row("events", segment=0, step=5, kind="assumption", message="of the first start")
    expected = [(step, float(1 + (step >= 4))) for step in range(8)]
    with open_run(written.write()) as run:
        assert run.sql("select step, amax from tensors order by step").fetchall() == expected
        assert run.sql("select step, loss from steps order by step").fetchall() == expected
        assert run.sql("select step, value from histograms order by step").fetchall() == expected
        assert run.sql("select step, sqrt(sum_x2 / n) from errors order by step").fetchall() == expected
        assert run.sql("select step, amax from tensor_errors order by step").fetchall() == expected
        assert run.sql('select step, max("values"[1]) from "values" group by step order by step').fetchall() == expected
        assert run.sql("select count(*) from events").fetchall() == [(1,)], "what went wrong stays"


def test_raw_values_are_floats(new_run: NewRun) -> None:
    written = new_run()
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    written.add("mlp", "x", x, step=0, keep_values=True)
    with open_run(written.write()) as run:
        rows = run.sql("select row, v.values from values v order by row").fetchall()
        assert [list(values) for _, values in rows] == x.tolist()
        assert run.sql("select typeof(v.values) from values v limit 1").fetchall() == [("FLOAT[]",)]


def test_layers_come_from_the_manifest(new_run: NewRun) -> None:
    layers = [
        {"name": f"blocks.{i}", "raw_name": f"module.blocks.{i}", "class_name": "Linear", "root": "model",
         "in_features": 4, "out_features": 8, "matched": i == 0}
        for i in range(2)
    ]  # fmt: skip
    written = new_run()
    manifest = json.loads((written.path / "run.json").read_text())
    (written.path / "run.json").write_text(json.dumps(manifest | {"layers": layers}))
    with open_run(written.path) as run:
        assert run.sql("select layer, raw_name, matched from layers order by layer").fetchall() == [
            ("blocks.0", "module.blocks.0", True),
            ("blocks.1", "module.blocks.1", False),
        ]


def test_thresholds_are_checked(new_run: NewRun) -> None:
    path = new_run().path
    with pytest.raises(UsageError, match=r"unknown threshold 'underflw'; did you mean underflow"):
        open_run(path, thresholds={"underflw": 0.1})
    with pytest.raises(UsageError, match=r"threshold underflow is nan; expected a finite number"):
        open_run(path, thresholds={"underflow": float("nan")})


@pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=["E4M3", "E5M2"])
def test_thresholds_of_a_format_are_the_formats(fmt: Format) -> None:
    name = fmt.name.lower()
    assert THRESHOLDS[f"sqnr_floor_{name}"].default == fmt.rounding_floor_sqnr_db
    assert THRESHOLDS[f"gain_bound_{name}"].default == fmt.max_gain_error
    assert THRESHOLDS[f"baseline_{name}"].default == fmt.baseline_sqnr_db


def test_opening_needs_no_numpy(new_run: NewRun) -> None:
    code = f"import sys; from fp8debug.analysis import open_run; open_run({str(new_run().path)!r}).table('candidates')"
    code += "; sys.exit('numpy' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_limits_reach_duckdb(new_run: NewRun) -> None:
    with open_run(new_run().path, memory_limit="300MB", threads=1) as run:
        query = "select current_setting('threads'), current_setting('memory_limit')"
        assert run.sql(query).fetchall() == [(1, "286.1 MiB")]


def test_opening_is_cheap(new_run: NewRun) -> None:
    written = new_run()
    for step in range(3):
        written.add("mlp", "x", ONES, step=step)
        written.write()
    spent = []
    for _ in range(3):
        before = time.process_time()
        with open_run(written.path, threads=1):
            spent.append(time.process_time() - before)
    assert min(spent) < 0.15
