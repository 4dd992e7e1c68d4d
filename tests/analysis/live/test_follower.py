"""A run while it is written: every number against the same data read whole, and every state that it can be in."""

from __future__ import annotations

import fcntl
import math
import os
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.live import Follower, Snapshot, Waiting, tail
from fp8debug.errors import Fp8DebugError
from fp8debug.rundir import RunDir

SAMPLE = Path(__file__).resolve().parents[3] / "sample_dumps" / "gpt-outlier"
BELL = np.tile(np.linspace(-1, 1, 8, dtype=np.float32), (64, 8))


def snapshot(path: Path | str | None, top: int = 5) -> Snapshot:
    """The first look at a run that is there."""
    with Follower(None if path is None else str(path), top=top) as follower:
        seen = follower.look()
    assert isinstance(seen, Snapshot), seen
    return seen


def add_steps(run: Any, steps: range, *, segment: int = 0, rank: int = 0, began_unix_s: float = 1e9) -> None:
    """Steps of 2 s each whose loss is their number, a record of x in each, sampled every tenth."""
    for step in steps:
        run.add("fc", "x", BELL, step=step, segment=segment, rank=rank, sampled=step % 10 == 0)
        run.add_row("steps", segment=segment, rank=rank, step=step, loss=step + 100.0 * segment + 1000.0 * rank,
                    grad_norm=0.5, sampled=step % 10 == 0, skipped=False, duration_s=2.0,
                    started_unix_s=began_unix_s + 2 * step)  # fmt: skip


def lock(path: Path) -> Any:
    """As the writer that lives holds it."""
    file = (path / "rank=0.lock").open("ab")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


# Numbers ------------------------------------------------------------------------------------------------------------


def test_as_the_whole_run_says() -> None:
    seen = snapshot(SAMPLE, top=3)
    with open_run(SAMPLE) as run:
        last, loss, norm = run.sql(
            "select max(step), arg_max(loss, step), arg_max(grad_norm, step) from steps"
        ).fetchall()[0]
        step, judged, hits = run.sql(
            """
            select step, count(distinct (layer, tensor)), count(distinct (layer, tensor)) filter
                (hit_sqnr or hit_gain or hit_gap or hit_underflow)
            from evidence
            where series = 'sampled' and not alternate and step = (select max(step) from sampled_evidence)
            group by step
            """
        ).fetchall()[0]
        worst = run.sql(
            """
            select layer, tensor, max(underflow), min(least(sqnr_db, sqnr_low_db)), max(scale_gap_bits)
            from sampled_evidence
            where step = $step and (layer, tensor, recipe) = ($layer, $tensor, $recipe) and not alternate
            group by layer, tensor
            """,
            step=step,
            layer=seen.worst[0].layer,
            tensor=seen.worst[0].tensor,
            recipe=seen.worst[0].recipe,
        ).fetchall()[0]
    assert seen.last_step is not None
    assert (seen.last_step.step, seen.last_step.loss, seen.last_step.grad_norm) == (last, loss, norm)
    assert (seen.sampled_step, seen.n_judged, seen.n_hits) == (step, judged, hits)
    first = seen.worst[0]
    assert (first.layer, first.tensor, first.underflow, first.sqnr_db, first.scale_gap_bits) == pytest.approx(worst)
    assert (first.layer, first.tensor, first.level) == ("blocks.1.fc1", "x", "hit")  # where the outlier was planted
    assert len(seen.worst) == 3


def test_gaps_of_a_step_that_is_not_sampled(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    for bits in (-1, 1, 3):
        run.add(f"up{bits}", "x", BELL, step=7, sampled=False, scales=(synthetic_run.ForcedScale(448.0 * 2.0**bits),))
    run.add("warming", "x", BELL, step=7, sampled=False, scales=(synthetic_run.ForcedScale(1e6, status="warmup"),))
    run.add_row("steps", step=7, duration_s=1.0, started_unix_s=1e9)
    seen = snapshot(run.write())
    gaps = [(gap.layer, gap.recipe, gap.scale_gap_bits) for gap in seen.gaps]
    assert gaps == [("up3", "delayed", 3), ("up1", "delayed", 1)]
    assert (seen.sampled_step, seen.worst) == (None, ())


def test_values_that_are_not_finite(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    bad = BELL.copy()
    bad[0, :3] = [math.nan, math.inf, -math.inf]
    for step in range(4):
        run.add("old", "x", bad if step == 1 else BELL, step=step, sampled=False)
        run.add("scaled", "dy", bad, step=step, sampled=False)  # of steps that the GradScaler skipped
        run.add_row("steps", step=step, skipped=True, duration_s=1.0, started_unix_s=1e9, loss=math.nan)
    seen = snapshot(run.write())
    assert [(n.layer, n.tensor, n.first_step, n.last_step, n.n_nan, n.n_inf) for n in seen.nonfinite] == [
        ("old", "x", 1, 1, 1, 2)
    ]
    assert seen.n_nonfinite == 1


def test_events_that_say_the_same_are_one(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    for step, layer in ((3, "a"), (5, "b")):
        run.add_row("events", step=step, unix_s=100.0 + step, kind="control", layer=layer, message="as told")
    run.add_row("events", step=1, unix_s=1.0, kind="first", layer="a", tensor="x", message="of one")
    seen = snapshot(run.write())
    assert [(e.kind, e.layer, e.tensor, e.first_step, e.last_step, e.count) for e in seen.events] == [
        ("first", "a", "x", 1, 1, 1),
        ("control", None, None, 3, 5, 2),
    ]


# A run that grows ---------------------------------------------------------------------------------------------------


def test_parts_that_come_and_parts_that_are_merged(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    path = str(run.path)
    with Follower(path, top=5) as follower:
        assert isinstance(seen := follower.look(), Snapshot)
        assert (seen.last_step, seen.age_s, seen.status) == (None, None, "running")
        for first in range(0, 30, 10):
            add_steps(run, range(first, first + 10))
            run.write()
            assert isinstance(seen := follower.look(), Snapshot)
            assert [step.step for step in seen.steps] == list(range(first + 10))
            assert seen.sampled_step == first
        for table in ("steps", "tensors", "errors", "histograms"):  # as a writer merges its own
            folder = run.path / table / "rank=0"
            import pyarrow as pa
            import pyarrow.parquet as pq

            parts = sorted(folder.iterdir())
            merged = pa.concat_tables([pq.read_table(part, partitioning=None) for part in parts])
            pq.write_table(merged, folder / "part-000000-000002.parquet")
            for part in parts:
                part.unlink()
        assert isinstance(seen := follower.look(), Snapshot)
        assert [step.step for step in seen.steps] == list(range(30))
        assert (seen.sampled_step, seen.problems) == (20, ())


def test_a_resumed_run_is_where_its_last_segment_is(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    add_steps(run, range(20))
    add_steps(run, range(8, 12), segment=1)
    seen = snapshot(run.write())
    assert [(step.step, step.loss) for step in seen.steps[-5:]] == [(7, 7), (8, 108), (9, 109), (10, 110), (11, 111)]
    assert seen.sampled_step == 10


def test_many_ranks(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run", world_size=20)
    for rank in range(20):
        run.add_row("steps", rank=rank, step=1, loss=1000.0 * rank, duration_s=1.0, started_unix_s=1e9)
    seen = snapshot(run.write())
    assert (seen.n_ranks, seen.n_ranks_read) == (20, tail.MOST_RANKS)
    read = [i * 19 // 15 for i in range(16)]
    assert seen.steps[0].loss == pytest.approx(1000 * sum(read) / 16)


def test_one_look_opens_a_bounded_number_of_files(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    for step in range(20):
        run.add("fc", "x", BELL, step=step, sampled=False)
        run.add_row("steps", step=step, duration_s=1.0, started_unix_s=1e9)
        run.write()
    newest = tail.Tail(RunDir(run.path))
    with newest.look():
        counts = {
            table: newest.sql(f"select count(*), max(step) from stored.{table}")[0] for table in ("steps", "tensors")
        }
    newest.close()
    assert counts == {"steps": (20, 19), "tensors": (tail.MOST_PARTS["tensors"], 19)}


def test_a_file_that_cannot_be_read_is_named(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    add_steps(run, range(3))
    run.write()
    (run.path / "steps" / "rank=0" / "part-000001.parquet").write_bytes(b"cut")
    seen = snapshot(run.path)
    assert len(seen.steps) == 3
    assert len(seen.problems) == 1 and "part-000001.parquet is left out" in seen.problems[0]


# States -------------------------------------------------------------------------------------------------------------


def test_waiting_for_what_is_not_there(
    synthetic_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Follower("runs/a", top=5) as follower:
        assert follower.look() == Waiting("runs/a is not there yet")
        Path("runs/a").mkdir(parents=True)
        assert follower.look() == Waiting("runs/a is there, but no run in it yet")
        synthetic_run.SyntheticRun(Path("runs/a"))
        assert isinstance(follower.look(), Snapshot)
        Path("runs/a/run.json").unlink()
        assert isinstance(follower.look(), Waiting)


def test_without_a_name_a_run_that_goes_on(
    synthetic_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("fp8debug-runs")
    with Follower(None, top=5) as follower:
        assert follower.look() == Waiting("no run in fp8debug-runs/ yet")
        synthetic_run.SyntheticRun(folder / "old", status="closed")
        os.utime(folder / "old", (1, 1))
        assert follower.look() == Waiting("no run goes on in fp8debug-runs/; old, the newest one, has ended")
        synthetic_run.SyntheticRun(folder / "new")
        seen = follower.look()
        assert isinstance(seen, Snapshot) and seen.path == str(folder / "new")


def test_another_run_in_its_place(synthetic_run: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "run"
    run = synthetic_run.SyntheticRun(path)
    add_steps(run, range(5))
    run.write()
    with Follower(str(path), top=5) as follower:
        assert isinstance(seen := follower.look(), Snapshot) and len(seen.steps) == 5
        path.rename(tmp_path / "moved")
        other = synthetic_run.SyntheticRun(path)
        other.manifest.run_id = "another"
        other.run_dir.write_manifest(other.manifest)
        add_steps(other, range(2), segment=0)
        other.write()
        assert isinstance(seen := follower.look(), Snapshot) and len(seen.steps) == 2


def test_alive_late_and_dead(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    now = time.time()
    run.manifest.segments = [{"segment": 0, "started_at": "2026-01-01T00:00:00+00:00"}]  # flushes every 300 s
    run.run_dir.write_manifest(run.manifest)
    add_steps(run, range(3), began_unix_s=now - 806)
    run.write()
    held = lock(run.path)
    seen = snapshot(run.path)
    assert (seen.status, seen.is_late, seen.late_after_s) == ("running", False, 3 * (300 + 2))
    assert seen.age_s == pytest.approx(800, abs=5)
    add_steps(late := synthetic_run.SyntheticRun(tmp_path / "late"), range(3), began_unix_s=now - 1006)
    late.manifest.segments = run.manifest.segments
    late.run_dir.write_manifest(late.manifest)
    also_held = lock(late.write())
    assert snapshot(late.path).is_late
    held.close()
    assert (seen := snapshot(run.path)).status == "killed" and not seen.has_ended
    also_held.close()
    run.manifest.status = "failed"
    run.run_dir.write_manifest(run.manifest)
    assert snapshot(run.path).has_ended


def test_a_run_of_a_newer_version(synthetic_run: ModuleType, tmp_path: Path) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    run.manifest.schema_version = 99
    run.run_dir.write_manifest(run.manifest)
    with Follower(str(run.path), top=5) as follower, pytest.raises(Fp8DebugError, match="schema version 99"):
        follower.look()
