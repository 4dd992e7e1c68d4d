"""`fp8debug import`: what it says, where it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fp8debug.cli.main import main
from fp8debug.rundir import RunDir

HEAD = "2025-03-01 10:00:00,123 - INFO - "


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A log of two layers and ten steps with a line that is none, in the working directory."""
    monkeypatch.chdir(tmp_path)
    names = ["a\x1b[31mb_gradient_mse", "fc1_gradient_underflows%"]
    lines = [f"{HEAD}{name} \t\t\t\t iteration={s:06d} \t\t\t\t value=0.0000" for s in range(10) for name in names]
    Path("te.log").write_text("\n".join([*lines, "\x1b[2Junknown"]) + "\n")
    return "te.log"


def test_what_it_says(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", log, "--from", "te-log", "-o", "run", "--name", "old one"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Wrote run\n  20 numbers from 1 log: mse, underflow_all of dy in 2 layers, 10 logged steps")
    assert "10 of 10 mse values are printed as 0.0000" in said
    assert 'te.log line 21 "\\x1b[2Junknown"' in " ".join(said.split()) and "\x1b" not in said
    assert said.endswith("Next: fp8debug report run\n")
    assert max(map(len, said.splitlines())) <= 80
    manifest = RunDir("run").read_manifest()
    assert (manifest.name, manifest.created_at) == ("old one", "2025-03-01T10:00:00")
    assert main(["report", "run"]) == 0
    assert "it cannot be told what FP8 costs" in " ".join(capsys.readouterr().out.split())


def test_where_it_writes(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import", log, "--from", "te-log", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert Path("fp8debug-runs/latest").resolve() == Path(document["path"]).resolve()
    assert (document["n_numbers"], document["n_unread"], document["tensors"]) == (20, 1, ["dy"])
    assert [note["kind"] for note in document["notes"]] == ["unread_line", "log_floor"]


def test_what_it_refuses(log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.log").write_text("nothing of the kind\n")
    for arguments, why in (
        ([log, "--from", "te"], "expected what wrote the logs: te-log"),
        (["bad.log", "--from", "te-log", "-o", "new"], "expected lines such as"),
        (["absent.log", "--from", "te-log", "-o", "new"], "No such file"),
        ([log, log, "--from", "te-log", "-o", "new"], "given twice"),
    ):
        assert main(["import", *arguments]) == 2
        assert why in capsys.readouterr().err
    assert not Path("new").exists() and not Path("fp8debug-runs").exists()


def test_two_runs_never_mix(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["import", log, "--from", "te-log", "-o", "run"]
    assert main(command) == 0
    assert main(command) == 2
    said = capsys.readouterr().err
    assert "--force to rename the old one" in said and "--resume" not in said
    Path("bad.log").write_text("nothing of the kind\n")
    assert main(["import", "bad.log", *command[2:], "--force"]) == 2
    assert not Path("run.old").exists(), "a run is renamed once there is something to put in its place"
    assert main([*command, "--force"]) == 0
    assert RunDir("run.old").exists() and RunDir("run").exists()
