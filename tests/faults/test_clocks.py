"""Clocks that jump, steps that come again: durations are of the steady clock, order is that of observation."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.analysis import open_run
from fp8debug.cli.main import main

JUMPS = (0.0, 3e9, -2e9, 0.0, 1.0, -1.0)
"""Seconds that the wall clock is off by, one call after the other: into the next century, back to before 1970, ..."""


def train(path: Path, steps: list[int], *, resumes: bool = False) -> None:
    """One Linear, a step for each number, told as a trainer does."""
    torch.manual_seed(0)
    net = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    place: dict[str, Any] = {"resume" if resumes else "run_dir": path}
    with fp8debug.attach(net, every=1, engine="torch", quiet=True, detail=(), **place) as session:
        for step in steps:
            session.begin_step(step)
            net(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_a_wall_clock_that_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true_time, began = time.time, time.monotonic()
    jumps = itertools.cycle(JUMPS)
    monkeypatch.setattr(time, "time", lambda: true_time() + next(jumps))
    train(tmp_path / "run", list(range(6)))
    took = time.monotonic() - began
    monkeypatch.undo()
    with open_run(tmp_path / "run") as run:
        rows = run.sql("select step, duration_s, started_unix_s from steps").fetchall()
        assert [step for step, _, _ in rows] == list(range(6)), "in the order of steps, whatever the wall clock said"
        assert all(0 <= duration < took for _, duration, _ in rows) and sum(d for _, d, _ in rows) <= took
        starts = [start for _, _, start in rows]
        assert starts != sorted(starts) and max(starts) - min(starts) > 1e9, "the clock did jump"
        seen = run.sql("select step, seq from tensors order by seq").fetchall()
        assert [step for step, _ in seen] == sorted(step for step, _ in seen)
        assert [seq for _, seq in seen] == list(range(len(seen)))
    assert main(["report", str(tmp_path / "run")]) == 0
    assert "6 (0 to 5)" in capsys.readouterr().out
    assert main(["runs", str(tmp_path)]) == 0


def test_steps_that_go_back_are_ordered_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that loads its checkpoint again without telling that it resumes."""
    train(tmp_path / "run", [0, 1, 2, 1, 2, 3])
    with open_run(tmp_path / "run") as run:
        events = run.sql("select kind, step, message from events").fetchall()
        assert [(kind, step) for kind, step, _ in events] == [("steps_went_back", 1)]
        assert events[0][2].startswith("step 1 begins after step 2 was reached: what is recorded twice of a step is")
        order = run.sql("select step from tensors where tensor = 'x' order by seq").fetchall()
        assert [step for (step,) in order] == [0, 1, 2, 1, 2, 3]
    assert main(["report", str(tmp_path / "run")]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "- step 1 begins after step 2 was reached" in text


def test_a_resumed_step_counts_once_and_the_report_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The clock went back between the two segments, too: the later segment counts, not the later time."""
    path = tmp_path / "run"
    train(path, [0, 1, 2, 3])
    true_time = time.time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: true_time() - 1e8)
        train(path, [2, 3, 4], resumes=True)
    with open_run(path) as run:
        assert run.sql("select step, segment from steps order by step").fetchall() == [
            (0, 0), (1, 0), (2, 1), (3, 1), (4, 1),
        ]  # fmt: skip
        twice = run.sql("select step, layer, tensor, count(*) from tensors group by all having count(*) > 1").fetchall()
        assert not twice
    assert main(["report", str(path)]) == 0
    assert "resumed 1 time" in capsys.readouterr().out
