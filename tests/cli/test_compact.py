"""`fp8debug compact`: what it says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from fp8debug.cli.main import main
from fp8debug.generations import READERS_LOCK
from fp8debug.rundir import RunDir


@pytest.fixture
def path(tmp_path: Path, synthetic_run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = synthetic_run.SyntheticRun(tmp_path / "run", status="closed")
    for step in range(3):
        made.add_row("steps", step=step, loss=1.0)
        made.add_row("events", step=step, kind="assumption", message="m")
        made.write()
    (tmp_path / "run" / READERS_LOCK).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def test_it_says_files_and_bytes_before_and_after(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sum(part.stat().st_size for part in path.rglob("*.parquet"))
    assert main(["compact", "run"]) == 0
    shown = capsys.readouterr()
    after = sum(part.stat().st_size for part in path.rglob("*.parquet"))
    assert shown.out == f"run: 6 files, {before / 1000:.1f} kB before; 2 files, {after / 1000:.1f} kB now\n"
    assert shown.err == "fp8debug: steps: 3 files into 1\nfp8debug: events: 3 files into 1\n"
    assert main(["runs", "."]) == 0
    assert " 3 " in capsys.readouterr().out.splitlines()[1], "three steps"


def test_files_that_are_left_are_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reader = RunDir(path).storage.share(READERS_LOCK)
    assert reader is not None
    assert main(["compact", "run"]) == 0
    assert "6 files of those are merged already" in capsys.readouterr().out
    reader.release()
    assert main(["compact", "run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["n_files_before"], told["n_files"], told["n_files_left"], told["generation"]) == (8, 2, 0, 1)
    assert told["run"] == "run"


def test_a_run_that_goes_on_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = RunDir(path).storage.hold("rank=0.lock")
    assert main(["compact", "run"]) == 1
    writer.release()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("fp8debug: run is being written (rank 0); expected a run that has ended")


def test_no_run_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", "runn"]) == 1
    assert "no such run: runn" in capsys.readouterr().err
