"""`fp8debug runs`: what is there, newest last."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fp8debug.cli.main import main
from fp8debug.rundir import RunDir


@pytest.fixture
def folder(tmp_path: Path, synthetic_run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, made in the order newest, oldest, unreadable; `latest` is a link."""
    runs = tmp_path / "fp8debug-runs"
    for name, created, status, layers in (
        ("train-20260102-030405", "2026-01-02T03:04:05+00:00", "closed", 2),
        ("train-20260101-000000", "2026-01-01T00:00:00+00:00", "running", 1),
    ):
        run = synthetic_run.SyntheticRun(
            runs / name, status=status, layers=[synthetic_run.layer_info(f"fc.{i}") for i in range(layers)]
        )
        manifest = run.run_dir.read_manifest()
        manifest.created_at = created
        manifest.command = ["fp8debug", "attach", "--every", "2", "examples/train_gpt.py", "--steps", "3"]
        run.run_dir.write_manifest(manifest)
        for step in range(3 * layers):
            run.add_row("steps", step=step, loss=1.0)
        run.write()
        RunDir(runs / name).lock_path(0).touch()
    (runs / "cut").mkdir()
    (runs / "cut" / "run.json").write_text('{"schema_version": 1')
    (runs / "latest").symlink_to("train-20260102-030405")
    (runs / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    assert main(["runs", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["created", "status", "steps", "layers", "size", "script", "path"]
    cells = [line.split() for line in lines[1:4]]
    assert cells[0][:4] == ["-", "unreadable", "-", "-"]
    assert cells[1][:5] == ["2026-01-01", "00:00", "killed", "3", "1"]
    assert cells[2][:5] == ["2026-01-02", "03:04", "closed", "6", "2"]
    assert cells[2][-2:] == ["train_gpt.py", "fp8debug-runs/train-20260102-030405"]
    assert lines[4].startswith("fp8debug-runs/cut: ") and "is not valid JSON" in lines[4]


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = run_json(capsys, "fp8debug-runs")
    assert document["list_version"] == 1
    cut, old, new = document["runs"]
    assert (cut["status"], cut["n_steps"]) == ("unreadable", None)
    assert (old["status"], old["n_steps"], old["n_layers"]) == ("killed", 3, 1)
    on_disk = sum(path.stat().st_size for path in Path(new["path"]).rglob("*") if path.is_file())
    assert (new["size_bytes"], new["script"], new["n_steps"]) == (on_disk, "examples/train_gpt.py", 6)


def test_one_run_instead_of_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (entry,) = run_json(capsys, "fp8debug-runs/train-20260102-030405")["runs"]
    assert entry["created_at"] == "2026-01-02T03:04:05+00:00"


def test_steps_of_a_run_whose_last_part_is_cut(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunDir(folder / "fp8debug-runs" / "train-20260102-030405").part_path("steps", 0, 1).write_bytes(b"PAR1")
    assert run_json(capsys)["runs"][2]["n_steps"] == 6


def test_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    out, err = capsys.readouterr()
    assert out == "" and "no runs in fp8debug-runs/; record one with `fp8debug attach train.py`" in err
    assert run_json(capsys)["runs"] == []
    assert main(["runs", "elsewhere"]) == 1
    assert "no such folder: elsewhere" in capsys.readouterr().err
