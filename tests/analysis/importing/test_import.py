"""From logs to a run, its views and its report."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fp8debug.analysis.importing import Imported
from fp8debug.analysis.report import build_report
from fp8debug.analysis.run import Run, open_run
from fp8debug.analysis.scope import Scope
from fp8debug.errors import UsageError
from fp8debug.hooks.tables import ARROW_SCHEMAS
from fp8debug.schema import TABLES

WriteLog = Callable[..., Path]
Import = Callable[..., Imported]
DELAYED = "fp8_delayed_scaling_overflows%"


def messages(done: Imported, kind: str) -> list[str]:
    return [note.message for note in done.notes if note.kind == kind]


def rows(run: Run, query: str) -> list[tuple[Any, ...]]:
    return run.sql(query).fetchall()


def test_numbers_stay_as_they_are(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    path = write_log(
        [
            ("fc1_activation_min", 10, -3.5),
            ("fc1_activation_max", 10, 2.25),
            ("fc1_activation_underflows%", 10, 12.5),
            ("fc1_activation_mxfp8_scale_inv_min", 10, 0.0),
            ("fc1_activation_mxfp8_scale_inv_max_columnwise", 10, 127.0),
            ("fc1_gradient_cur_amax", 10, 3e-6),
            ("fc1_gradient_nvfp4_mse", 10, 2e-7),
            ("fc1_gradient_share_above_3", 10, 0.5),
            ("fc1_weight_cur_amax", 20, 0.125),
        ]
    )
    done = import_logs([path], name="old", command=["fp8debug", "import"])
    assert (done.n_numbers, done.n_layers, done.tensors, done.n_steps) == (9, 1, ("x", "w", "dy"), 2)
    assert (done.first_step, done.last_step, done.n_unread) == (10, 20, 0)
    with open_run(tmp_path / "run", threads=1) as run:
        assert rows(
            run,
            "select step, layer, tensor, pass, recipe, fmt, statistic, value, at_floor, columnwise, given_name "
            "from statistics order by step, tensor, given_name",
        ) == [
            (10, "fc1", "dy", "backward", None, None, "amax", 0.0, True, False, "cur_amax"),
            (10, "fc1", "dy", "backward", "nvfp4", "E2M1", "mse", 0.0, True, False, "nvfp4_mse"),
            (10, "fc1", "dy", "backward", None, None, "share_above_3", 0.5, False, False, "share_above_3"),
            (10, "fc1", "x", "forward", None, None, "max", 2.25, False, False, "max"),
            (10, "fc1", "x", "forward", None, None, "min", -3.5, False, False, "min"),
            (10, "fc1", "x", "forward", "mxfp8", None, "scale_inv_max", 127.0, False, True,
             "mxfp8_scale_inv_max_columnwise"),
            (10, "fc1", "x", "forward", "mxfp8", None, "scale_inv_min", 0.0, False, False, "mxfp8_scale_inv_min"),
            (10, "fc1", "x", "forward", None, None, "underflow_all", 0.125, False, False, "underflows%"),
            (20, "fc1", "w", "forward", None, None, "amax", 0.125, False, False, "cur_amax"),
        ]  # fmt: skip
        assert rows(run, "select layer, tensor, step, amax, n, n_nan, sampled, status from tensors order by all") == [
            ("fc1", "dy", 10, None, None, None, False, "imported"),
            ("fc1", "w", 20, 0.125, None, None, False, "imported"),
            ("fc1", "x", 10, 3.5, None, None, False, "imported"),
        ]
        assert rows(run, "select step, loss, sampled from steps order by step") == [
            (10, None, False), (20, None, False),
        ]  # fmt: skip
        assert rows(run, "select count(*) from errors") == [(0,)]
        assert rows(
            run,
            "select recipe, columnwise, amax, underflow_all, scale_inv_min, scale_inv_max from given_statistics "
            "where tensor = 'x' order by recipe, columnwise",
        ) == [
            ("mxfp8", False, None, None, 0.0, None), ("mxfp8", True, None, None, None, 127.0),
            (None, False, 3.5, 0.125, None, None),
        ]  # fmt: skip
        assert run.manifest.status == "imported" and run.manifest.name == "old"


def test_the_floor_of_four_decimals(write_log: WriteLog, import_logs: Import) -> None:
    scalars = [(f"l{i}_gradient_fp8_current_scaling_mse", s, 1e-7) for s in range(20) for i in range(30)]
    scalars += [("l0_gradient_mxfp8_scale_inv_max", s, 118.0) for s in range(20)]
    scalars += [("l0_gradient_underflows%", s, 0.0) for s in range(20)]
    done = import_logs([write_log(scalars)])
    (floor,) = messages(done, "log_floor")
    assert floor.startswith("600 of 600 mse values are printed as 0.0000")
    (codes,) = messages(done, "log_definition")
    assert "mxfp8 are codes" in codes


def test_definitions_that_are_not_what_names_say(write_log: WriteLog, import_logs: Import) -> None:
    scalars = [("a_weight_std", 0, math.nan), ("a_weight_std", 1, 1.0), ("a_weight_mxfp8_mse_columnwise", 0, 1.0)]
    scalars += [("a_activation_fp8_block_scaling_mse", 0, 1.0), ("a_weight_scale_inv_min", 0, 118.0)]
    said = "\n".join(messages(import_logs([write_log(sorted(scalars, key=lambda s: s[1]))]), "log_definition"))
    assert "or NaN (1 of 2)" in said
    assert "named columnwise are computed from the row-wise data" in said
    assert "128 x 128" in said
    assert "if the training ran in MXFP8" in said


def test_lines_that_give_nothing_are_counted_and_named(
    write_log: WriteLog, import_logs: Import, tmp_path: Path
) -> None:
    path = write_log([("fc1_activation_max", s, 1.0) for s in range(6)])
    with path.open("a") as file:
        file.write("\n".join(f"\x1b[31mTraceback {i}" for i in range(5)))
        file.write("\n2025-01-01 00:00:00,000 - INFO - fc1_activation_max \t iteration=000009 \t value=3.1")
    done = import_logs([path])
    assert done.n_unread == 6 and done.last_step == 5
    junk, cut = messages(done, "unread_line")
    assert junk.startswith("5 lines were not read (no number of a tensor): nvdlfw_inspect_globalrank-0.log line 7")
    assert "\\x1b[31mTraceback 2" in junk and "Traceback 3" not in junk and "; and 2 more" in junk
    assert cut.startswith("1 line was not read (cut short") and "line 12" in cut
    with open_run(tmp_path / "run", threads=1) as run:
        assert rows(run, "select count(*) from events where kind = 'unread_line'") == [(2,)]


def test_restarts_repeats_and_uses(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    scalars = [("fc_activation_max", s, float(s)) for s in range(6)]
    scalars += [("fc_activation_max", s, 100.0 + s) for s in range(4, 8)]  # restarted from a checkpoint of step 4
    scalars += [("fc_activation_max", 7, 107.0), ("fc_activation_max", 7, 55.0)]  # again, and once more with another
    done = import_logs([write_log(scalars)])
    (restart,) = messages(done, "log_restart")
    assert "rank 0 from step 5 to 4 (nvdlfw_inspect_globalrank-0.log line 7)" in restart
    repeated, uses = messages(done, "log_repeat")
    assert repeated.startswith("1 line repeats") and uses.startswith("1 number stands")
    with open_run(tmp_path / "run", threads=1) as run:
        assert rows(run, "select step, segment, call, value from statistics order by step, call") == [
            *((s, 0, 0, float(s)) for s in range(4)),
            *((s, 1, 0, 100.0 + s) for s in range(4, 8)),
            (7, 1, 1, 55.0),
        ]
        assert [s["first_step"] for s in run.manifest.segments] == [0, 4]
        assert rows(run, "select count(*) from stored.statistics") == [(11,)]


def test_a_gap(write_log: WriteLog, import_logs: Import) -> None:
    done = import_logs([write_log([("a_weight_max", s, 1.0) for s in (0, 10, 20, 30, 90, 100)])])
    assert messages(done, "log_gap") == ["steps were logged every 10, and none between 30 and 90"]


def test_ranks(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    """Reduced numbers are the same in all files and kept once; others are kept for each rank; a rank may be absent."""
    files = []
    for rank in (0, 1, 8):
        scalars = [("fc_activation_cur_amax", s, 2.0 + s) for s in range(3)]
        scalars += [("fc_weight_cur_amax", 2, 1.0 + rank % 8)]  # rank 8 holds the same piece as rank 0
        files.append(write_log(scalars, rank=rank))
    done = import_logs(files)
    assert (done.ranks, done.n_numbers) == ((0, 1, 8), 3 + 2)
    assert messages(done, "ranks_alike")[0].startswith("the logs of 3 ranks give 7 numbers that a lower rank gives too")
    assert messages(done, "ranks_differ")[0].startswith("1 numbers differ")
    with open_run(tmp_path / "run", threads=1) as run:
        assert rows(run, "select rank, tensor, step, amax from tensors order by all") == [
            (0, "w", 2, 1.0), (0, "x", 0, 2.0), (0, "x", 1, 3.0), (0, "x", 2, 4.0), (1, "w", 2, 2.0),
        ]  # fmt: skip
        report = build_report(run)
        assert report.ranks is not None
        assert (report.ranks.n_ranks, report.ranks.missing, report.ranks.differing) == (3, (), ())
        assert report.findings == ()


def test_files_of_one_rank_follow_each_other(write_log: WriteLog, import_logs: Import) -> None:
    first = write_log([("a_weight_max", s, 1.0) for s in range(5)], folder="first")
    second = write_log([("a_weight_max", s, 1.0) for s in range(4, 8)], folder="second")
    third = write_log([("a_weight_max", 8, 1.0)], folder="third")
    done = import_logs([first, second, third])
    assert "from step 4 to 4" in messages(done, "log_restart")[0]
    assert messages(done, "log_order")[0].startswith("3 files are of rank 0")
    assert done.n_steps == 9


def test_what_is_no_log_leaves_nothing(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    good = write_log([("a_weight_max", 0, 1.0)])
    bad, empty = tmp_path / "b_globalrank-1.log", tmp_path / "c_globalrank-2.log"
    bad.write_text("2025-01-01 00:00:00,123 - INFO - Assigned layer name: \x1b[2Jmodel\n")
    empty.touch()
    with pytest.raises(UsageError, match=r"its line 1 is .*x1b\[2Jmodel.*\n.*iteration=000012   value=0.0123") as error:
        import_logs([good, bad])
    assert "\x1b" not in str(error.value)
    for files, match in (([empty], "nothing is in"), ([good, good], "given twice"), ([tmp_path / "z"], "No such file")):
        with pytest.raises(UsageError, match=match):
            import_logs(files)
    assert not (tmp_path / "run").exists()
    done = import_logs([good, empty])
    assert messages(done, "empty_log") == ["nothing is in c_globalrank-2.log"]


def test_an_import_that_fails_late_leaves_no_part(
    write_log: WriteLog, import_logs: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fp8debug.analysis.importing.parts.FLUSH_ROWS", 1)
    first = write_log([("a_weight_max", s, 1.0) for s in range(5)], folder="first")
    with pytest.raises(UsageError, match="cannot read"):
        import_logs([first, tmp_path / "absent.log"])
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


def test_parts_of_a_long_log(
    write_log: WriteLog, import_logs: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fp8debug.analysis.importing.parts.FLUSH_ROWS", 50)
    import_logs([write_log([(f"l{i}_weight_max", s, s + i / 8) for s in range(20) for i in range(10)])])
    parts = list((tmp_path / "run" / "statistics" / "rank=0").iterdir())
    assert len(parts) > 5
    with open_run(tmp_path / "run", threads=1, scope=Scope(layer="l[3]_*", steps=((5, 6),))) as run:
        assert run.problems == []
        assert rows(run, "select layer, step, value from statistics order by all") == [
            ("l3", 5, 5.375),
            ("l3", 6, 6.375),
        ]


def test_every_part_is_what_the_schema_says(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    """Columns, their order, and in the file itself what they mean, as a capture writes them."""
    import_logs([write_log([("a_weight_mse", 0, 0.0)])])
    parts = {part.parent.parent.name: pq.read_schema(part) for part in (tmp_path / "run").glob("*/rank=0/*.parquet")}
    assert parts.keys() == {"steps", "tensors", "statistics", "events"}
    for name, found in parts.items():
        assert found.names == list(TABLES[name].column_names)
        assert [f.metadata[b"meaning"].decode() for f in found] == [c.meaning for c in TABLES[name].columns]
        assert found.metadata[b"fp8debug.table"].decode() == name
        assert found.equals(ARROW_SCHEMAS[name].with_metadata(found.metadata))


def test_too_many_restarts_are_several_logs(write_log: WriteLog, import_logs: Import) -> None:
    path = write_log([("a_weight_max", 1 - s % 2, 1.0) for s in range(2100)])
    with pytest.raises(UsageError, match="lines of several logs"):
        import_logs([path])


def test_hostile_names(write_log: WriteLog, import_logs: Import, tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", "'; drop table x; --", "a\x1b[31mb", "é\u202e.fc", '"', "{x} $y %s"]
    import_logs([write_log([(f"{name}_activation_cur_amax", s, 1.5) for s in range(2) for name in names])])
    with open_run(tmp_path / "run", threads=1) as run:
        assert {layer for (layer,) in rows(run, "select distinct layer from tensors")} == set(names)
        assert build_report(run).health.n_operands == len(names)
    assert [layer["name"] for layer in json.loads((tmp_path / "run" / "run.json").read_text())["layers"]] == names
