"""A run that goes on: segments, the step each begins with, and what is kept of those before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.analysis.run import open_run
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks import place
from fp8debug.hooks.ranks import Launch, note_spawned, rank_and_world
from fp8debug.hooks.resume import last_step, optimizer_count
from fp8debug.rundir import RankInfo, RunDir

if TYPE_CHECKING:
    from tests.hooks.conftest import Recorded


class Training:
    """A model and an Adam, as a script has them after it has loaded a checkpoint."""

    def __init__(self, counted: int = 0, optimizer: type[torch.optim.Optimizer] = torch.optim.Adam) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)  # type: ignore[call-arg]
        if counted:
            for parameter in self.model.parameters():
                state = {"step": torch.tensor(float(counted)), "exp_avg": torch.zeros_like(parameter)}
                self.optimizer.state[parameter] = state | {"exp_avg_sq": torch.ones_like(parameter)}

    def run(self, n_steps: int, **options: Any) -> None:
        with fp8debug.attach(self.model, every=1, engine="torch", **options):
            for _ in range(n_steps):
                self.model(torch.ones(2, 4)).square().sum().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()


def events(run: Recorded) -> list[tuple[str, str]]:
    return [(row["kind"], row["message"]) for row in run.rows("events")]


@pytest.mark.captures(
    case="resume",
    how="--resume DIR, attach(resume=DIR)",
    sees="a new segment whose first step is the optimizer's count, --resume-step, or the next; the last segment that "
    "wrote a step counts, simulated histories begin anew",
    limits="where no optimizer counts, the first step is assumed, which is an event",
)
def test_a_run_goes_on_where_the_optimizer_counts(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Killed after step 4, resumed from a checkpoint of step 3: steps 3 and 4 exist twice."""
    path = recorded.path
    Training().run(5, run_dir=path, quiet=True)
    old_parts = set(path.rglob("part-*.parquet"))
    before = {part: part.read_bytes() for part in old_parts}
    Training(counted=3).run(3, resume=path, layers="1")
    err = capsys.readouterr().err
    assert "fp8debug: segment 1 begins at step 3: as the optimizer counts" in err.splitlines()
    manifest = recorded.manifest
    assert [(s["segment"], s["first_step"]) for s in manifest["segments"]] == [(0, 0), (1, 3)]
    assert all(s["started_at"] and s["command"] for s in manifest["segments"])
    assert (manifest["status"], manifest["run_id"]) == ("closed", "run")
    assert [layer["name"] for layer in manifest["layers"]] == ["0", "1"], "layer 0 is of the first segment"
    assert {part: part.read_bytes() for part in old_parts} == before, "nothing is written over"
    assert events(recorded) == [("resumed", "segment 1 begins at step 3: as the optimizer counts")]
    assert sorted({(r["segment"], r["step"]) for r in recorded.rows("steps")}) == [
        *((0, step) for step in range(5)), (1, 3), (1, 4), (1, 5),
    ]  # fmt: skip
    with open_run(path) as run:
        counted = run.sql("select step, segment from steps order by step").fetchall()
        assert counted == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1)]
        layers = run.sql("select step, list(distinct layer order by layer) from tensors group by step order by step")
        assert layers.fetchall() == [*((step, ["0", "1"]) for step in range(3)), *((step, ["1"]) for step in (3, 4, 5))]
        scales = (
            "select step, status from scales where recipe = 'delayed' and tensor = 'x' and layer = '1' order by step"
        )
        assert run.sql(scales).fetchall() == [(0, "warmup"), (1, "ok"), (2, "ok"), (3, "warmup"), (4, "ok"), (5, "ok")]
        gaps = run.sql("select count(*) from scale_gaps where step = 3 and segment = 0").fetchall()
        assert gaps == [(0,)]


def test_how_the_first_step_is_known(recorded: Recorded) -> None:
    path = recorded.path
    Training().run(2, run_dir=path, quiet=True)
    Training(optimizer=torch.optim.SGD).run(2, resume=path, quiet=True)
    Training(counted=9).run(1, resume=path, resume_step=40, quiet=True)
    training = Training(counted=9)
    with fp8debug.attach(training.model, engine="torch", resume=path, quiet=True) as session:
        session.begin_step(50)
        training.model(torch.ones(2, 4)).sum().backward()
    assert [s["first_step"] for s in recorded.manifest["segments"]] == [0, 2, 40, 50]
    told = events(recorded)
    assert [kind for kind, _ in told] == ["resumed", "assumption", "resumed", "resumed"]
    assert "one after the last that was recorded; no optimizer has counted" in told[1][1]
    assert "as --resume-step says" in told[2][1] and "as the trainer counts" in told[3][1]
    assert sorted({row["step"] for row in recorded.rows("tensors")}) == [0, 1, 2, 3, 40, 50]


def test_steps_of_a_cut_part_are_found_in_the_one_before(recorded: Recorded) -> None:
    Training().run(3, run_dir=recorded.path, quiet=True)
    folder = recorded.path / "steps/rank=0"
    (folder / "part-000009.parquet").write_bytes(b"cut")
    assert last_step(RunDir(recorded.path), 1) == 2
    assert last_step(RunDir(recorded.path), 0) is None
    Training(optimizer=torch.optim.SGD).run(1, resume=recorded.path, quiet=True)
    assert (folder / "part-000010.parquet").exists()
    assert pq.read_table(folder / "part-000010.parquet")["step"].to_pylist() == [3]


def test_the_count_of_an_optimizer() -> None:
    first, second = Training(counted=7), Training(counted=5)
    own = {id(p) for p in first.model.parameters()}
    assert optimizer_count(own) == 7
    del first
    assert optimizer_count(set()) == 5, "the only one that counts"
    third = Training(counted=6)
    assert optimizer_count(set()) is None
    del second, third


def test_what_cannot_be_resumed_is_refused(recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Linear(2, 2)
    with pytest.raises(UsageError, match=r"--resume .* holds no run \(run.json is missing\)"):
        fp8debug.attach(layer, resume=tmp_path / "nowhere", quiet=True)
    assert not (tmp_path / "nowhere").exists()
    path = recorded.path
    with fp8debug.attach(layer, run_dir=path, quiet=True), pytest.raises(UsageError, match="being written by another"):
        fp8debug.attach(nn.Linear(2, 2), resume=path, quiet=True)
    with pytest.raises(UsageError, match="--resume and --force were both given"):
        fp8debug.attach(layer, resume=path, force=True, quiet=True)
    with pytest.raises(UsageError, match="name two directories"):
        fp8debug.attach(layer, resume=path, run_dir=tmp_path / "other", quiet=True)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"2 ranks that share no run id.*FP8DEBUG_LAUNCH"):
        fp8debug.attach(layer, resume=path, quiet=True)
    (path / "run.json").write_text("{")
    monkeypatch.setenv("FP8DEBUG_LAUNCH", "second")
    with pytest.raises(Fp8DebugError, match="not valid JSON"):
        fp8debug.attach(layer, resume=path, quiet=True)


def test_ranks_of_one_launch_write_one_segment_and_another_world_is_an_event(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = recorded.path
    Training().run(2, run_dir=path, quiet=True)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("FP8DEBUG_LAUNCH", "second")
    for rank in ("1", "0"):  # whichever comes first
        monkeypatch.setenv("RANK", rank)
        Training(counted=2).run(1, resume=path, quiet=True)
    assert [s["segment"] for s in recorded.manifest["segments"]] == [0, 1]
    assert recorded.manifest["world_size"] == 2
    assert sorted({(r["segment"], r["rank"], r["step"]) for r in recorded.rows("tensors")}) == [
        (0, 0, 0), (0, 0, 1), (1, 0, 2), (1, 1, 2),
    ]  # fmt: skip
    assert [(r.rank, r.segment, r.world_size) for r in RunDir(path).read_ranks()] == [(0, 1, 2), (1, 1, 2)]
    assert [message for kind, message in events(recorded) if "before" in message] == [
        "segment 1: 1 ranks before, 2 now"
    ] * 2


def test_ranks_that_torchrun_starts_again_go_on(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given the directory of the first attempt; a stranger is not."""
    monkeypatch.setenv("FP8DEBUG_LAUNCH", "mine")
    Training().run(3, run_dir=recorded.path, quiet=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    Training(counted=2).run(1, run_dir=recorded.path, quiet=True)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Training(counted=2).run(1, run_dir=recorded.path, quiet=True)  # after rank 0 has begun the segment
    assert {(row["rank"], row["segment"]) for row in recorded.rows("steps")} == {(0, 0), (0, 1), (1, 1)}
    assert [(s["launch"], s["first_step"]) for s in recorded.manifest["segments"]] == [("mine.0", 0), ("mine.1", 2)]
    monkeypatch.setenv("FP8DEBUG_LAUNCH", "other")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "3")
    with pytest.raises(UsageError, match="is not empty"):
        Training().run(1, run_dir=recorded.path, quiet=True)


def test_a_rank_waits_until_rank_0_has_renamed_the_old_run(tmp_path: Path) -> None:
    path, mine = tmp_path / "run", Launch("new")
    path.mkdir()
    (path / "run.json").write_text('{"segments": [{"launch": "old.0"}]}')
    (path / "rank=1.json").write_text("{}")
    with pytest.raises(Fp8DebugError, match=r"rank 1 waited 0 s for rank 0 to rename the old run at"):
        place.prepare_run_path(path, force=True, rank=1, world=2, launch=mine, wait_s=0.1)
    assert place.prepare_run_path(path, force=True, rank=0, world=2, launch=mine) == tmp_path / "run.old"
    assert place.prepare_run_path(path, force=True, rank=1, world=2, launch=mine, wait_s=0.1) is None
    # What another rank of this launch has written is no old run.
    (path / "run.json").write_text('{"segments": [{"launch": "new.0", "rank": 1}]}')
    assert place.prepare_run_path(path, force=False, rank=0, world=2, launch=mine) is None


def test_what_cannot_be_created_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file/below/run", Path("/proc/no/run")):
        with pytest.raises(UsageError, match=r"--out .*run cannot be created: .*give another --out"):
            place.check_run_path(path, force=False)
    place.check_run_path(tmp_path / "a/b/run", force=False)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_manifest_of_another_rank_is_never_written_over(tmp_path: Path, recorded: Recorded) -> None:
    Training().run(1, run_dir=recorded.path, quiet=True)
    run_dir = RunDir(recorded.path)
    manifest = run_dir.read_manifest()
    manifest.name = "late"
    run_dir.create_manifest(manifest)
    assert run_dir.read_manifest().name is None
    empty = RunDir(tmp_path / "empty")
    empty.folder.mkdir()
    empty.create_manifest(manifest)
    assert empty.read_manifest().name == "late"
    assert [p.name for p in empty.folder.iterdir()] == ["run.json"]
    run_dir.write_rank(RankInfo(rank=3, world_size=4, host="h", pid=1))
    assert run_dir.read_ranks()[-1].rank == 3


def test_the_index_of_a_spawned_process(monkeypatch: pytest.MonkeyPatch) -> None:
    from fp8debug.hooks import ranks

    monkeypatch.setattr(ranks._Spawned, "rank_and_world", None)
    monkeypatch.setattr(ranks._Spawned, "launch", None)
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    assert rank_and_world(slurm) == (0, 1)
    note_spawned(1, 4, "mine")
    assert rank_and_world(slurm) == (1, 4)
    assert rank_and_world({"RANK": "6", "WORLD_SIZE": "8"}) == (6, 8)
    assert ranks.this_launch({}).text == "mine.0"
