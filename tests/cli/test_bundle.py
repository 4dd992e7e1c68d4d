"""`fp8debug bundle`: the archive, what is said of it, and that it is a run directory when it is unpacked."""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from fp8debug.cli.main import main


@pytest.fixture
def run_path(synthetic_run: ModuleType, runs: ModuleType, tmp_path: Path) -> Path:
    path: Path = runs.write_faulty(synthetic_run, tmp_path / "runs" / "gpt")
    return path


def test_an_archive_that_opens(run_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "b.zip"
    assert main(["bundle", str(run_path), "-o", str(target)]) == 0
    said, errors = capsys.readouterr()
    assert errors == "" and said.startswith(f"Wrote {target} (0.") and max(map(len, said.splitlines())) <= 100
    assert "No raw values, paths, user or host names." in said
    with zipfile.ZipFile(target) as archive:
        entries = archive.infolist()
        archive.extractall(tmp_path)
    assert {entry.date_time[0] for entry in entries} == {1980}
    folder = tmp_path / "fp8debug-bundle"
    texts = ("README.txt", "findings.json", "report.txt", "run.json")
    assert all((folder / name).is_file() for name in texts)
    assert not any(str(tmp_path) in (folder / name).read_text() for name in texts)
    assert main(["report", str(folder)]) == 0
    opened = capsys.readouterr().out
    assert "blocks.1.fc1" in opened
    # The same but for the path of the folder, which breaks lines, and commands with a backslash, elsewhere.
    reports = (opened.replace(str(folder), "fp8debug-bundle"), (folder / "report.txt").read_text())
    there, inside = ([word for word in text.split() if word != "\\"] for text in reports)
    assert inside == there

    assert main(["bundle", str(run_path), "-o", str(target)]) == 2
    assert "exists already; add --force" in capsys.readouterr().err
    assert main(["bundle", str(run_path), "-o", str(run_path / "b.zip")]) == 2
    assert "is inside the run directory" in capsys.readouterr().err


def test_nothing_to_bundle(synthetic_run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = synthetic_run.SyntheticRun(tmp_path / "empty").write()
    assert main(["bundle", str(path), "-o", str(tmp_path / "b.zip")]) == 1
    assert "there is nothing to bundle" in capsys.readouterr().err
    assert main(["bundle", str(path), "-o", str(tmp_path / "b.zip"), "--max-mb", "0"]) == 2
