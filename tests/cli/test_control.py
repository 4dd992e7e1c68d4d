"""`fp8debug control` by itself: what it refuses before it writes, what it writes, what it prints."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fp8debug.cli.main import main
from fp8debug.control import Control, read_control, write_control
from fp8debug.rundir import LayerInfo, Manifest, RankInfo, RunDir

STARTED = "2026-01-02T03:04:05+00:00"


def layer(name: str) -> LayerInfo:
    return LayerInfo(name, name, "Linear", "Net", 4, 4, True)


class Live:
    """A run that a training is writing, as far as a reader can tell: a manifest and a lock that is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.control = path / "control.json"
        path.mkdir()
        self.run_dir = RunDir(path)
        self.write(options={"layers": [], "tensors": ["x", "w", "dy"], "every": 50})
        # Rank 1 holds another part of the model.
        self.run_dir.write_rank(RankInfo(0, 2, "host", 1, layers=[layer("blocks.0.fc")]))
        self.run_dir.write_rank(RankInfo(1, 2, "host", 2, layers=[layer("blocks.1.fc")]))

    def write(self, **cells: Any) -> None:
        manifest = Manifest("run", ["train.py"], STARTED, layers=[layer("blocks.0.fc")], **cells)
        manifest.segments = [{"segment": 0, "started_at": STARTED, "first_step": 0}]
        self.run_dir.write_manifest(manifest)

    def ask(self, *words: str) -> int:
        return main(["control", str(self.path), *words])


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    run = Live(tmp_path / "run")
    with run.run_dir.lock_path(0).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield run


def test_changes_add_up(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file holds all that is in force, so that a rank which misses one misses nothing."""
    assert live.ask("--layers", r"blocks\.1", "--every", "2") == 0
    assert live.ask("--raw-now") == 0
    assert live.ask("--tensors", "gradient,activation", "--raw-every", "0", "--detail", "none") == 0
    written = read_control(live.control)
    assert written.serial == 3
    assert written.raw_now == 2, "asked for once: a rank that comes late still does it"
    assert written.options == {
        "layers": (r"blocks\.1",),
        "every": 2,
        "tensors": ("x", "dy"),
        "raw_every": 0,
        "detail": (),
    }
    said = capsys.readouterr().err.splitlines()
    assert said[1].startswith("fp8debug: control 2 written") and "raw values of one step" in said[1]
    assert "raw values" not in said[2] and "detail none" in said[2]
    assert live.ask("--all-layers") == 0
    assert read_control(live.control).options["layers"] == ()
    assert "layers all" in capsys.readouterr().err
    assert not list(live.path.glob("*.tmp*"))


def test_without_options_it_tells(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    assert live.ask() == 0
    assert capsys.readouterr().out.splitlines() == [
        "as started: no control was given",
        "  layers    all",
        "  exclude   none",
        "  tensors   x,w,dy",
        "  every     50",
        "  raw-every 0",
        "  detail    channels,blocks,gemms",
        "  rank 0    as started",
        "  rank 1    as started",
    ]
    live.ask("--every", "3")
    live.run_dir.write_rank(RankInfo(0, 2, "host", 1, control={"serial": 1, "step": 12}))
    live.run_dir.write_rank(RankInfo(1, 2, "host", 2, control={"refused": "no such layer", "refused_at_step": 11}))
    capsys.readouterr()
    live.ask()
    first, *_, rank_0, rank_1 = capsys.readouterr().out.splitlines()
    assert first.startswith("control 1, written 20")
    assert rank_0 == "  rank 0    follows control 1 since step 12"
    assert rank_1 == "  rank 1    as started; refused at step 11: no such layer"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--every", "0"), "--every: got 0; expected a whole number of at least 1"),
        (("--raw-every", "-1"), "--raw-every: got -1; expected a whole number of at least 0"),
        (("--layers", "("), "--layers: got '('; expected a regular expression"),
        (("--layers", "attn"), "--layers 'attn' matches none of the 2 GEMM layers"),
        (("--layers", "fc", "--layers", "attn"), "--layers 'attn' matches none of the 2 GEMM layers"),
        (("--exclude", "fc"), "--exclude leaves none of the 2 GEMM layers"),
        (("--tensors", "x,q"), "--tensors: got 'x,q'; expected some of x, w, dy"),
        (("--detail", "chanels"), "--detail: got 'chanels'; expected some of channels, blocks, gemms, or none"),
        (("--all-layers", "--layers", "fc"), "--all-layers takes every layer"),
    ],
)
def test_what_the_ranks_would_refuse(
    live: Live, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    assert live.ask(*words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fp8debug: ") and message in error and error.count("\n") == 1
    assert not live.control.exists()


def test_nobody_would_follow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Live(tmp_path / "run")
    run.run_dir.lock_path(0).touch()
    assert run.ask("--every", "1") == 1
    assert "is not being recorded (status: killed), so nobody would follow" in capsys.readouterr().err
    run.write(status="closed")
    assert run.ask("--every", "1") == 1
    assert "(status: closed)" in capsys.readouterr().err
    assert run.ask() == 0, "but it can still be looked at"
    assert main(["control", str(tmp_path / "none"), "--every", "1"]) == 1


def test_a_file_from_before_the_resume_and_a_bad_one(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    """Their numbers go on, so that the next file is seen as new; what they asked for does not."""
    write_control(live.control, Control(serial=7, written_unix_s=1.0, options={"every": 9}))
    assert live.ask("--raw-every", "4") == 0
    written = read_control(live.control)
    assert (written.serial, written.options) == (8, {"raw_every": 4})
    content = json.loads(live.control.read_text()) | {"surprise": 1}
    live.control.write_text(json.dumps(content))
    assert live.ask("--every", "6") == 0
    written = read_control(live.control)
    assert (written.serial, written.options) == (9, {"every": 6})
    capsys.readouterr()
