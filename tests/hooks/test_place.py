"""Which directory a run is recorded in: alone, under SLURM, under torchrun, when something is there already."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.hooks import place, ranks
from fp8debug.rundir import find_run

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

LAUNCHERS = (
    *("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "FP8DEBUG_RUN_DIR"),
)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No launcher's variables, an empty working directory, and a clock that stands still."""
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)

    class Noon(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Noon:
            return cls(2026, 3, 4, 12, 0, 5)

    monkeypatch.setattr(place, "datetime", Noon)


@pytest.mark.parametrize(
    ("environment", "rank", "world"),
    [
        ({}, 0, 1),
        ({"RANK": "3", "WORLD_SIZE": "8"}, 3, 8),
        ({"SLURM_PROCID": "2", "SLURM_NTASKS": "4"}, 2, 4),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "RANK": "9", "WORLD_SIZE": "16"}, 9, 16),
    ],
)
def test_rank_and_world(environment: dict[str, str], rank: int, world: int) -> None:
    assert ranks.rank_and_world(environment) == (rank, world)


@pytest.mark.parametrize(
    ("environment", "run_id"),
    [
        ({}, None),
        ({"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0"}, None),
        ({"TORCHELASTIC_RUN_ID": "sweep7"}, "torchrun-sweep7.0"),
        ({"TORCHELASTIC_RUN_ID": "sweep7", "TORCHELASTIC_RESTART_COUNT": "2"}, "torchrun-sweep7.2"),
        ({"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "1"}, "slurm-4711.1"),
        ({"SLURM_JOB_ID": "4711", "TORCHELASTIC_RUN_ID": "none"}, "slurm-4711.0"),
    ],
)
def test_shared_run_id(environment: dict[str, str], run_id: str | None) -> None:
    assert ranks.shared_run_id(environment) == run_id


@pytest.mark.parametrize(
    ("environment", "out", "name", "world", "path"),
    [
        ({}, None, None, 1, "fp8debug-runs/train_me-20260304-120005"),
        ({}, None, "lr 3e-4/a", 1, "fp8debug-runs/train_me-20260304-120005-lr_3e-4_a"),
        ({}, "here/run", None, 1, "here/run"),
        ({"FP8DEBUG_RUN_DIR": "given"}, None, None, 1, "given"),
        ({"FP8DEBUG_RUN_DIR": "given"}, "here", None, 8, "here"),
        ({"FP8DEBUG_RUN_DIR": "given"}, None, None, 8, "given"),
        ({"SLURM_JOB_ID": "12"}, None, None, 8, "fp8debug-runs/train_me-slurm-12.0"),
        ({"TORCHELASTIC_RUN_ID": "a/b"}, None, None, 8, "fp8debug-runs/train_me-torchrun-a_b.0"),
        ({"SLURM_JOB_ID": "12"}, None, None, 1, "fp8debug-runs/train_me-20260304-120005"),
    ],
)  # fmt: skip
def test_path(
    environment: dict[str, str],
    out: str | None,
    name: str | None,
    world: int,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert place.resolve_run_path(out, "/some/where/train me.py", name, world) == Path(path)


def test_ranks_that_share_nothing_are_told_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    with pytest.raises(UsageError, match=r"8 ranks share no run id.*--out DIR, set FP8DEBUG_RUN_DIR.*--rdzv-id NAME"):
        place.resolve_run_path(None, "train.py", None, 8)


def test_two_runs_in_one_second(tmp_path: Path) -> None:
    paths = []
    for _ in range(3):
        paths.append(place.resolve_run_path(None, "train.py", None, 1))
        place.prepare_run_path(paths[-1], force=False)
    stem = "fp8debug-runs/train-20260304-120005"
    assert paths == [Path(stem), Path(f"{stem}-2"), Path(f"{stem}-3")]


def test_a_directory_in_use_is_refused_or_renamed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    assert place.prepare_run_path(path, force=False) is None
    assert place.prepare_run_path(path, force=False) is None, "an empty directory will do"
    (path / "mine.txt").write_text("precious")
    for act in (place.check_run_path, place.prepare_run_path):
        with pytest.raises(UsageError, match=r"run is not empty; two runs never mix in one directory.*--force"):
            act(path, force=False)
    place.check_run_path(path, force=True)
    assert (path / "mine.txt").exists(), "checking touches nothing"
    moved = [place.prepare_run_path(path, force=True)]
    (path / "again.txt").touch()
    moved.append(place.prepare_run_path(path, force=True))
    assert moved == [tmp_path / "run.old", tmp_path / "run.old2"]
    assert (tmp_path / "run.old/mine.txt").read_text() == "precious"
    assert (tmp_path / "run.old2/again.txt").exists()
    assert list(path.iterdir()) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_text("x")
    for force in (False, True):
        with pytest.raises(UsageError, match="run is a file; expected a directory"):
            place.prepare_run_path(path, force=force)
    assert path.read_text() == "x"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Path]:
    """A directory that somebody's rank 0 is writing."""
    path = tmp_path / "live"
    path.mkdir()
    (path / "run.json").write_text("{}")
    with (path / "rank=0.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


@pytest.mark.parametrize("world", [1, 4])
@pytest.mark.parametrize("force", [False, True])
def test_a_run_that_is_being_written_is_never_moved(force: bool, world: int, live: Path) -> None:
    with pytest.raises(UsageError, match="live is being written by another process"):
        place.prepare_run_path(live, force=force, world=world)
    assert (live / "run.json").exists()


def test_the_ranks_of_one_launch_come_in_any_order(live: Path, tmp_path: Path) -> None:
    """What rank 1 put there before rank 0 came is no other run; nor is what the living rank 0 put there."""
    early = tmp_path / "early"
    assert place.prepare_run_path(early, force=False, rank=1, world=2) is None
    (early / "rank=1.lock").touch()
    (early / "tensors/rank=1").mkdir(parents=True)
    assert place.prepare_run_path(early, force=False, rank=0, world=2) is None
    assert (early / "rank=1.lock").exists()
    assert place.prepare_run_path(live, force=False, rank=1, world=2) is None


def test_no_rank_joins_an_old_run(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for rank in range(2):
        with pytest.raises(UsageError, match="not empty"):
            place.prepare_run_path(tmp_path, force=False, rank=rank, world=2)


def test_latest_points_to_the_newest_run_of_a_runs_folder(attach: Attach, tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    link = Path("fp8debug-runs/latest")
    first = attach(layer, run_dir=None).close().run_path
    assert link.is_symlink()
    assert os.readlink(link) == first.name
    second = attach(layer, run_dir=None).close().run_path
    assert first != second
    assert find_run(None).folder.samefile(second)
    attach(layer, run_dir="fp8debug-runs/chosen").close()
    assert os.readlink(link) == "chosen"
    attach(layer, run_dir=tmp_path / "elsewhere/run").close()
    assert os.readlink(link) == "chosen"
    assert sorted(p.name for p in (tmp_path / "elsewhere").iterdir()) == ["run"], "no link where runs do not belong"


def test_a_file_called_latest_is_left_alone_and_a_link_that_cannot_be_made_costs_nothing(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("fp8debug-runs").mkdir()
    Path("fp8debug-runs/latest").write_text("mine")
    attach(nn.Linear(2, 2), run_dir="fp8debug-runs/a").close()
    assert Path("fp8debug-runs/latest").read_text() == "mine"
    Path("fp8debug-runs/latest").unlink()

    def no_links(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(Path, "symlink_to", no_links)
    session = attach(nn.Linear(2, 2), run_dir="fp8debug-runs/b")
    assert session.active
    session.close()
    assert find_run(None).path == Path("fp8debug-runs/b")


def test_attaching_twice_to_one_directory(
    attach: Attach, recorded: Recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    layer = nn.Linear(2, 2)
    with attach(layer, name="first"):
        for force in (False, True):
            with pytest.raises(Fp8DebugError, match="being written by another process"):
                attach(nn.Linear(2, 2), force=force)
        layer(torch.ones(1, 2))
    assert recorded.manifest["name"] == "first"
    assert recorded.keys()
    with pytest.raises(UsageError, match="not empty"):
        attach(layer)
    session = attach(layer, force=True, quiet=False)
    assert re.search(r"the old run was renamed to .*run\.old$", capsys.readouterr().err, re.MULTILINE)
    session.close()
    assert (recorded.path.with_name("run.old") / "run.json").exists()
    assert recorded.manifest["name"] is None
    assert not recorded.parts("tensors")
