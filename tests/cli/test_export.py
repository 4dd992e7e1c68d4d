"""`fp8debug export`: each target from the command line, and nothing written where it must not be."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import duckdb
import pyarrow.parquet as pq
import pytest

from fp8debug.cli.main import main


class Export:
    """`fp8debug export` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        got = main(["export", *arguments])
        out, self.err = self._capsys.readouterr()
        assert got == code, self.err
        return out


@pytest.fixture
def export(shared: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Export:
    """Run from inside the folder of the shared runs."""
    monkeypatch.chdir(shared)
    return Export(capsys)


def test_rows_in_three_formats(export: Export, tmp_path: Path) -> None:
    chosen = ["healthy", "--layer", r"\.0\.", "--tensor", "activation", "--steps", "2-3,20-", "--recipe", "delayed"]
    lines = [json.loads(line) for line in export(*chosen, "--to", "jsonl").splitlines()]
    assert [(row["step"], row["layer"], row["tensor"], row["recipe"]) for row in lines] == [
        (step, "blocks.0.fc1", "x", "delayed") for step in (2, 20, 22)
    ]
    assert all(row["scale_gap_bits"] == 0 and row["overflow"] == 0 for row in lines), "each has its ideal scale"
    rows = list(csv.DictReader(io.StringIO(export(*chosen, "--to", "csv"))))
    assert [(int(row["step"]), float(row["sqnr_db"])) for row in rows] == [(r["step"], r["sqnr_db"]) for r in lines]
    target = tmp_path / "rows.parquet"
    assert export(*chosen, "--to", "parquet", "-o", str(target)) == ""
    assert export.err == f"fp8debug: wrote {target} (3 rows)\n"
    assert pq.read_table(target).to_pylist() == lines


def test_numbers_that_are_none(tmp_path: Path, synthetic_run: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """As `fp8debug sql` writes them; and the training may still be writing."""
    export = Export(capsys)
    run = synthetic_run.SyntheticRun(tmp_path / "run", status="running")
    export(str(run.path), "--to", "csv", "--view", "steps", code=1)
    assert "nothing recorded yet" in export.err and "nothing to export" in export.err
    run.add_row("steps", step=0, loss=float("nan"))
    run.write()
    (run.path / "steps" / "rank=0" / ".part-000001.parquet.tmp1").write_bytes(b"half")
    (row,) = csv.DictReader(io.StringIO(export(str(run.path), "--to", "csv", "--view", "steps")))
    assert (row["step"], row["loss"], row["grad_norm"]) == ("0", "nan", "")
    line = json.loads(export(str(run.path), "--to", "jsonl", "--view", "steps"))
    assert (line["step"], line["loss"], line["grad_norm"]) == (0, None, None)
    assert "fp8debug_loss NaN\n" in export(str(run.path), "--to", "openmetrics")
    (run.path / "rank=0.lock").touch()  # nobody holds it
    assert 'status="killed"' in export(str(run.path), "--to", "openmetrics")


def test_files_are_not_replaced_unasked(export: Export, tmp_path: Path) -> None:
    for target in ("csv", "openmetrics"):
        path = tmp_path / f"x.{target}"
        path.write_text("mine")
        export("healthy", "--to", target, "-o", str(path), code=2)
        assert "exists already; add --force" in export.err and path.read_text() == "mine"
        export("healthy", "--to", target, "-o", str(path), "--force")
        assert path.stat().st_size > 1000
    assert len(list(tmp_path.iterdir())) == 2, "no temporary file is left"
    pipe, link = tmp_path / "pipe", tmp_path / "link.csv"
    os.mkfifo(pipe)
    export("healthy", "--to", "csv", "-o", str(pipe), "--force", code=2)
    assert "is a device, a pipe or a socket" in export.err and pipe.is_fifo()
    link.symlink_to(tmp_path / "x.csv")
    export("healthy", "--to", "csv", "--view", "steps", "-o", str(link), "--force")
    assert link.is_symlink() and (tmp_path / "x.csv").read_text().startswith("segment,")
    # The temporary file's own name is longer than the system takes.
    export("healthy", "--to", "csv", "-o", str(tmp_path / ("a" * 250)), code=1)
    assert "File name too long" in export.err


def test_an_empty_selection_names_what_there_is(export: Export, tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    nothing = ["faulty", "--view", "candidates", "--layer", "blocks.0", "--to"]
    for words in (["csv"], ["parquet", "-o", str(target)]):
        assert export(*nothing, *words, code=2) == ""
        assert "--layer leaves no row of candidates to export; the view has layers blocks.1.fc1" in export.err
    assert not target.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--to is missing: expected one of tensorboard, wandb-offline, csv, parquet, jsonl, openmetrics"),
        (["--to", "tensorboard", "--view", "steps"], 2, "--view does not go with --to tensorboard"),
        (["--to", "csv", "--view", "operand"], 2, "there is no view 'operand'; nearest names: operand_steps"),
        (["--to", "csv", "--tensor", "q"], 2, "--tensor: got 'q'; expected some of x, w, dy"),
        (["--to", "csv", "--steps", "9-1"], 2, "runs backwards"),
        (["--to", "csv", "--steps", "900"], 2, "this run has steps 0 to 22"),
        (["--to", "tensorboard", "-o", "healthy/board"], 2, "is inside the run directory"),
        (["--to", "tensorboard", "-o", "healthy/run.json"], 2, "is a file; expected a folder"),
    ],
)
def test_what_cannot_be_exported(export: Export, arguments: list[str], code: int, message: str) -> None:
    assert export("healthy", *arguments, code=code) == ""
    assert message in export.err and "Traceback" not in export.err


def test_tensorboard(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = export(str(shared / "healthy"), "--to", "tensorboard", "--tensor", "x").splitlines()
    (written,) = (tmp_path / "healthy-tensorboard").iterdir()
    assert first == f"Wrote healthy-tensorboard/{written.name}"
    assert second == "Next: tensorboard --logdir healthy-tensorboard"


# Weights & Biases -----------------------------------------------------------------------------------------------------


def test_wandb_offline(shared: Path, tmp_path: Path) -> None:
    """In a process of its own: wandb starts a service, and reads the environment once."""
    home, target = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    surroundings = {**os.environ, "HOME": str(home), "WANDB_MODE": "online", "WANDB_RUN_ID": "other", "WANDB_DIR": "/"}
    ran = subprocess.run(
        [sys.executable, "-m", "fp8debug", "export", str(shared / "healthy"), "--to", "wandb-offline", "--tensor", "x",
         "--layer", r"\.0\.", "-o", str(target)],
        cwd=home, env=surroundings, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    (folder,) = (target / "wandb").iterdir()
    assert folder.name.startswith("offline-run-") and list(target.iterdir()) == [target / "wandb"]
    assert ran.stdout.splitlines()[1] == f"Next: wandb sync {folder}"
    assert list(home.iterdir()) == [], "nothing is written elsewhere"
    history, config = read_wandb(next(folder.glob("*.wandb")))
    assert config["run_id"] == "synthetic" and config["recipes"] == ["current", "delayed"] and "command" not in config
    assert [row["_step"] for row in history] == list(range(24))
    assert [row["_timestamp"] for row in history] == [float(step) for step in range(24)]
    assert history[3]["loss"] == 5.5 - 3 / 10
    found = {row["_step"]: row["sqnr_db/blocks.0.fc1/x/current"] for row in history if len(row) > 10}
    tables = {name: f"read_parquet('{shared}/healthy/{name}/*/*.parquet')" for name in ("errors", "tensors")}
    by_hand = duckdb.execute(
        f"select step, 10 * log10(sum_x2 / sum_err2) from {tables['errors']} "
        "where recipe = 'current' and layer = 'blocks.0.fc1' and tensor = 'x'"
    ).fetchall()
    assert found == pytest.approx(dict(by_hand)) and len(found) == 12


def read_wandb(path: Path) -> tuple[list[dict[str, float]], dict[str, object]]:
    """History and configuration of an offline run, from its file."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    history: list[dict[str, float]] = []
    config: dict[str, object] = {}
    for data in records(path.read_bytes()):
        record = Record.FromString(data)
        for item in record.run.config.update:
            config[item.key] = json.loads(item.value_json)
        if record.HasField("history"):
            row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            history.append(row)
    return history, config


def records(data: bytes) -> Iterator[bytes]:
    """Whole records of a LevelDB log: blocks of 32 kB, in each of them pieces of records with 7 bytes before them."""
    whole, place = b"", 7
    while place < len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a record in one piece, the last piece of one
            yield whole
            whole = b""
