"""`fp8debug watch`: in a terminal and through a pipe, beside a training that begins after it and ends before it."""

from __future__ import annotations

import fcntl
import io
import math
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis.live import Follower, LiveEvent, LiveOperand, LiveStep, NonFinite, Snapshot, Waiting
from fp8debug.cli.interruption import ending_on_signals
from fp8debug.cli.main import main
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import display_width
from fp8debug.cli.render.watch import screen_lines
from fp8debug.cli.render.watch_lines import WatchLines
from fp8debug.cli.render.watch_words import ago_text
from fp8debug.cli.watching import view

COMMAND = [sys.executable, "-m", "fp8debug", "watch"]
TRAINING = """
import itertools, pathlib, time, torch, fp8debug
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 64)).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with fp8debug.attach(model, run_dir="run", every=2, detail=(), quiet=True) as session:
    for step in itertools.count():
        loss = model(torch.randn(32, 64, dtype=torch.bfloat16)).float().square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        session.flush()
        if pathlib.Path("enough").exists():
            break
        time.sleep(0.1)
"""


def step(number: int, loss: float | None = 2.5, **changes: Any) -> LiveStep:
    fields = {"grad_norm": 1.0, "lr": 1e-3, "sampled": False, "skipped": False, "duration_s": 0.5,
              "ended_unix_s": 1e9 + number}  # fmt: skip
    return LiveStep(number, loss, **{**fields, **changes})


def operand(layer: str = "blocks.1.fc1", level: str = "hit") -> LiveOperand:
    return LiveOperand(layer, "x", "delayed:amax_history_len=16", "E4M3", level, 0.125, 0.0, 10.0, 1.0, 2.0)


def snapshot(**changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "path": "run", "script": "train.py", "created_at": "2026-01-01T00:00:00", "status": "running",
        "status_reason": None, "dead_ranks": (), "n_segments": 1, "n_ranks": 1, "n_ranks_read": 1,
        "now_unix_s": 1e9 + 12.5, "late_after_s": 60.0, "holds_back": False, "steps": tuple(map(step, range(11))),
    }  # fmt: skip
    return Snapshot(**{**fields, **changes})


def everything() -> Snapshot:
    """More than fits any screen, with names that nobody should have chosen."""
    worst = tuple(operand(f"model.layers.{i}.self_attn.a_projection_with_a_long_name" * 2) for i in range(20))
    return snapshot(
        sampled_step=10, worst=(operand("évil\x1b[2J\nname" * 3), *worst), gaps=worst, n_hits=20, n_judged=99,
        nonfinite=tuple(NonFinite(f"n{i}", "dy", 1, 2, 3, 4) for i in range(9)), n_nonfinite=9,
        events=tuple(LiveEvent("control", "as told " * 30, 1, 2, None, None, 2, 1e9) for _ in range(9)),
        problems=("x" * 300,), dead_ranks=(1, 2), n_ranks=4, n_ranks_read=2, n_segments=3, script="s" * 200,
    )  # fmt: skip


# What is drawn ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("height", [5, 12, 24, 60])
@pytest.mark.parametrize("width", [60, 80, 100])
def test_every_screen_fits(width: int, height: int) -> None:
    for looks in (Looks(width=width), Looks(width=width, ascii_only=True)):
        lines = screen_lines(everything(), looks, height, run_path="r" * 120, note="a note " * 40)
        assert len(lines) <= height
        assert max(map(display_width, lines)) <= width
        assert all(line.isprintable() for line in lines)
        assert not looks.ascii_only or "".join(lines).replace("é", "").isascii()


def test_an_ordinary_screen() -> None:
    seen = snapshot(sampled_step=10, worst=(operand(),), n_hits=1, n_judged=3)
    text = "\n".join(screen_lines(seen, Looks(), 24, run_path="runs/a"))
    for expected in (
        r"^fp8debug watch runs/a +\d\d:\d\d:\d\d$",
        r"^  status    still running; train\.py$",
        r"^  step      10, 2\.5 s old; 2 steps/s; lr 0\.001$",
        r"^  loss      2\.5       ▁{11}$",
        r"^  1 of 3 operands lose more than rounding alone explains$",
        r"^  blocks\.1\.fc1 x  delayed:ama…   12\.5 %  10\.0 dB  2\.0 bits$",
    ):
        assert re.search(expected, text, re.MULTILINE), text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": ()}, "none on disk yet"),
        ({"now_unix_s": 1e9 + 100}, r"nothing new since \S+ \S+ \(90 s\)"),
        ({"now_unix_s": 1e9 + 100, "holds_back": True}, "the flight recorder holds later ones back"),
        ({"status": "killed"}, r"killed; .*\n.*its process is gone; nothing new since \S+ \S+ \(2\.5 s\)"),
        ({"steps": (step(1, math.nan),)}, r"loss      nan"),
        ({"status": "failed", "status_reason": "ZeroDivisionError"}, r"the script failed \(ZeroDivisionError\)"),
        ({}, "no sampled step is on disk yet"),
        ({"status": "closed"}, "no sampled step is on disk$"),
        ({"steps": (step(1, sampled=True),)}, "no errors on disk of a recipe with one scale a tensor;"),
        ({"sampled_step": 10}, "none has enough values to say anything"),
    ],
)
def test_what_a_screen_says(changes: dict[str, Any], expected: str) -> None:
    text = "\n".join(screen_lines(snapshot(**changes), Looks(), 24, run_path="runs/a"))
    assert re.search(expected, text, re.MULTILINE), text


def test_ages() -> None:
    assert [ago_text(s) for s in (0.0, 1.94, 10, 119, 120, 7199, 7200, 172_800)] == [
        "0.0 s", "1.9 s", "10 s", "119 s", "2 min", "120 min", "2 h", "2 days",
    ]  # fmt: skip


def test_lines_tell_what_is_new() -> None:
    lines = WatchLines()
    told = [list(lines.of(Waiting("a is not there yet"), "")) for _ in range(2)]
    assert told == [["waiting: a is not there yet"], []]
    first = list(lines.of(snapshot(), "runs/a"))
    assert first[:2] == ["watching runs/a: still running, train.py", "step 1  loss 2.5  grad_norm 1  lr 0.001  0.5 s"]
    assert len(first) == 11
    assert list(lines.of(snapshot(), "runs/a")) == []
    event = LiveEvent("control", "as\ntold", 12, 12, "fc", "x", 1, 1e9)
    later = snapshot(steps=(step(14, None), step(15, skipped=True)), sampled_step=14, worst=(operand(),), n_hits=1,
                     n_judged=2, nonfinite=(NonFinite("fc", "x", 14, 15, 1, 0),), events=(event,))  # fmt: skip
    assert list(lines.of(later, "runs/a")) == [
        "... 3 steps between",
        "step 14  grad_norm 1  lr 0.001  0.5 s",
        "step 15  loss 2.5  grad_norm 1  lr 0.001  0.5 s  skipped by the GradScaler",
        "step 14 sampled: worst blocks.1.fc1 x under delayed:amax_history_len=16: 12.5 % to zero, SQNR 10.0 dB, gap "
        "2.0 bits; 1 of 2 operands lose more than rounding alone explains",
        "not finite: fc x: 1 NaN and 0 Inf, steps 14 to 15",
        r"event: step 12 control fc x: as\ntold",
    ]
    assert list(lines.of(snapshot(steps=(step(7),)), "runs/a")) == [
        "resumed at step 7",
        "step 7  loss 2.5  grad_norm 1  lr 0.001  0.5 s",
    ]


# The command --------------------------------------------------------------------------------------------------------


def test_a_training_from_before_its_start_to_its_end(
    pseudo_terminal: ModuleType, warm_python: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAINING, encoding="utf-8")
    terminal = pseudo_terminal.Terminal([*COMMAND, "run", "--interval", "0.2"], tmp_path)
    piped = subprocess.Popen(
        [*COMMAND, "run", "--interval", "0.2"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    terminal.wait_for("waiting: run is not there yet")
    training = threading.Thread(target=lambda: warm_python.run(tmp_path, "train.py"))
    training.start()
    text = terminal.wait_for(lambda text: re.search(r"  step      [1-9]", text) is not None, timeout_s=90)
    assert "still running; train.py" in text
    assert terminal.screen.is_alternate and terminal.screen.is_cursor_hidden and terminal.screen.has_colours
    terminal.resize(100, 30)
    terminal.wait_for(lambda text: len(text.splitlines()[0]) == 100 if text else False)
    (tmp_path / "enough").touch()
    assert terminal.end() == 0
    training.join()
    assert not terminal.screen.is_alternate and not terminal.screen.is_cursor_hidden
    end = r"run: finished, step (\d+), loss \S+\nnext: fp8debug report run"
    found = re.fullmatch(end, terminal.screen.text)
    assert found is not None, terminal.screen.text
    assert not terminal.screen.has_wrapped
    assert "\x1b[2J" not in terminal.out  # it would flicker
    out, err = piped.communicate(timeout=20)
    told = out.decode().splitlines()
    assert (piped.returncode, err) == (0, b"")
    assert told[0] == "waiting: run is not there yet"
    steps = [int(n[1]) for line in told if (n := re.match(r"step (\d+)  loss \S+", line))]
    assert steps[-1] == int(found[1]) and len(steps) >= min(steps[-1], 10)
    assert re.fullmatch(end, "\n".join(told[-2:])) is not None
    assert all(line.isprintable() for line in told)


@pytest.fixture
def running(synthetic_run: ModuleType, tmp_path: Path) -> Iterator[Any]:
    """A run whose writer lives: as long as this is open."""
    run = synthetic_run.SyntheticRun(tmp_path / "run")
    run.add("évil\x1b[2J", "x", np.ones((16, 32), np.float32), step=0)
    run.add_row("steps", step=0, loss=1.0, duration_s=1.0, started_unix_s=1e9)
    run.write()
    held = (run.path / "rank=0.lock").open("ab")
    fcntl.flock(held, fcntl.LOCK_EX)
    with held:
        yield held


def test_leaving_gives_the_terminal_back(pseudo_terminal: ModuleType, running: Any, tmp_path: Path) -> None:
    terminal = pseudo_terminal.Terminal([*COMMAND, "run"], tmp_path, environment={"NO_COLOR": "1"})
    terminal.wait_for("still running")
    assert not terminal.screen.has_colours
    assert terminal.end(signal.SIGINT) == 130
    assert (terminal.screen.is_alternate, terminal.screen.is_cursor_hidden, terminal.screen.text) == (False, False, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_leave_as_an_exit_does(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as left, ending_on_signals():
        signal.raise_signal(number)
    assert left.value.code == 128 + number
    assert signal.getsignal(number) is before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As `nohup fp8debug watch run &` wants it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("interval", ["inf", "nan", "0"])
def test_an_interval_that_cannot_be_slept(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "run", "--interval", interval]) == 2
    assert "Invalid value for '--interval'" in capsys.readouterr().err


class Dumb(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Dumb()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("TERM", "dumb")
    with view() as shown:
        shown.show(snapshot(steps=(step(0),)), "run")
    assert stream.getvalue().endswith("step 0  loss 2.5  grad_norm 1  lr 0.001  0.5 s\n")
    assert "\x1b" not in stream.getvalue()


def test_once(running: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(tmp_path / "run"), "--once"]) == 0
    out = capsys.readouterr().out
    assert "still running" in out and r"évil\x1b[2J x" in out and "Ctrl-C" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert main(["watch", str(tmp_path / "no"), "--once"]) == 1
    assert "no such run" in capsys.readouterr().err


def test_an_end_that_came_before(synthetic_run: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = synthetic_run.SyntheticRun(tmp_path / "a b", status="failed", status_reason="ValueError: no")
    assert main(["watch", str(run.path)]) == 0
    path = str(run.path)
    assert capsys.readouterr().out.splitlines() == [
        f"watching {path}: the script failed, train.py",
        f"{path}: the script failed (ValueError: no), before the first step was over",
        f"next: fp8debug report '{path}'",
    ]


def test_a_run_in_a_bucket(synthetic_run: ModuleType, tmp_path: Path) -> None:
    import fsspec

    run = synthetic_run.SyntheticRun(tmp_path / "run")
    run.add_row("steps", step=3, loss=1.0, duration_s=1.0, started_unix_s=1e9)
    run.write()
    memory = fsspec.filesystem("memory")
    memory.put(str(run.path), "/watched/run", recursive=True)
    with Follower("memory://watched/run", top=3) as follower:
        assert follower.is_far
        assert isinstance(seen := follower.look(), Snapshot) and [s.step for s in seen.steps] == [3]
        run.add_row("steps", step=4, loss=1.0, duration_s=1.0, started_unix_s=1e9)
        run.write()
        memory.put(str(run.path), "/watched", recursive=True)
        assert isinstance(seen := follower.look(), Snapshot) and [s.step for s in seen.steps] == [3, 4]
