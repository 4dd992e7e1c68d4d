"""Death at any moment, forks, data workers, and captures that nobody closes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import fp8debug
from fp8debug.errors import Fp8DebugError
from fp8debug.parts import parse_part
from fp8debug.rundir import RunDir

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded, Zygote


def is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def flushes(run: Path, parts: list[Path]) -> int:
    """How many flushes the parts of a table hold, which follow each other without a gap."""
    held = [parse_part(part.relative_to(run).as_posix()) for part in parts]
    numbers = [n for part in held if part is not None for n in range(part.first, part.last + 1)]
    assert numbers == list(range(len(numbers)))
    return len(numbers)


# Of two layers with x, w and dy; delayed and current, dy in two formats. Histograms have as many as there are values.
# Channels: amax, and for each recipe and format SQNR and underflow, two axes. GEMMs: dgrad and wgrad in two formats.
ROWS_PER_STEP = {
    "steps": 1,
    "tensors": 6,
    "scales": 8,
    "errors": 16,
    "channels": 2 * 2 * ((1 + 2 * 2) + (1 + 2 * 2) + (1 + 2 * 4)),
    "gemms": 2 * (2 + 4 + 4),
    "histograms": 0,  # written last
}


@pytest.mark.parametrize("n_parts", [1, 2, 5, 9])
def test_kill_9(n_parts: int, zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path) -> None:
    """Killed while it writes without a pause: what has the name of a part is whole, and steps are whole too."""
    run = read_run(tmp_path / "a/run")
    pid = zygote.start("endless", tmp_path / "a")
    deadline = time.monotonic() + 60
    while len(run.parts("steps")) < n_parts:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    with pytest.raises(Fp8DebugError, match="being written by another process"):
        fp8debug.attach(nn.Linear(2, 2), run_dir=run.path, force=True, quiet=True)
    time.sleep(0.0007 * n_parts)  # not always at the same point of the writing
    os.kill(pid, signal.SIGKILL)
    assert zygote.wait() == signal.SIGKILL

    assert run.manifest["status"] == "running"
    assert is_free(run.path / "rank=0.lock")
    parts = {table: RunDir(run.path).parts(table) for table in ROWS_PER_STEP}
    files = {p for p in run.path.rglob("*") if p.is_file()} - {
        run.path / name for name in ("run.json", "rank=0.json", "rank=0.lock", ".readers")
    }
    # What a merged part replaces is a file for a moment longer, and no part that counts any more.
    merged = {p for p in files if parse_part(p.relative_to(run.path).as_posix()) is not None}
    leftovers = files - merged
    assert len(leftovers) <= 1, "one part is written at a time"
    assert all(".tmp" in p.name for p in leftovers)
    # Every flush here is one step; the tables are written one after the other.
    lengths = [flushes(run.path, found) for found in parts.values()]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] >= n_parts
    assert lengths[0] - lengths[-1] <= 1
    for table, n_rows in ROWS_PER_STEP.items():
        read = [pq.ParquetFile(part).read() for part in parts[table]]
        if n_rows:
            steps = [step for rows in read for step in rows["step"].to_pylist()]
            assert steps == [step for step in range(flushes(run.path, parts[table])) for _ in range(n_rows)]
        else:
            assert all(rows.num_rows > 0 for rows in read)


def test_a_run_ends_with_its_training_though_a_fork_lives_on(
    zygote: Zygote, read_run: Callable[[Path], Recorded], tmp_path: Path
) -> None:
    facts = zygote.run("child_outlives_parent", tmp_path / "a")
    try:
        os.kill(facts["child"], 0)
        run = read_run(tmp_path / "a/run")
        assert run.manifest["status"] == "closed"
        assert is_free(run.path / "rank=0.lock"), "the child holds nothing"
        assert len(run.keys()) == 6
    finally:
        os.kill(facts["child"], signal.SIGKILL)


def test_a_fork_records_nothing_and_the_parent_goes_on(attach: Attach, recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with attach(model) as session:
        model(torch.ones(2, 3)).sum().backward()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
            child = os.fork()
        if child == 0:
            status = 1
            try:
                model(torch.ones(2, 3)).sum().backward()
                quiet = not session.active and not model[0]._forward_hooks
                summary = session.close()
                status = 0 if quiet and summary.n_records == 0 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not is_free(recorded.path / "rank=0.lock"), "the parent still has it"
        model(torch.ones(2, 3)).sum().backward()
    assert recorded.manifest["status"] == "closed"
    assert recorded.keys() == [
        *("0/0/0 forward 0.x", "0/0/0 forward 0.w", "0/0/0 backward 0.dy"),
        *("0/1/0 forward 0.x", "0/1/0 backward 0.dy"),
    ]


class Features(Dataset[torch.Tensor]):
    """Computes its items with the model that is being trained."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with torch.no_grad():
            y: torch.Tensor = self.model(torch.full((3,), float(index)))
        return y


def test_data_workers(attach: Attach, recorded: Recorded) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with attach(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = DataLoader(Features(model), batch_size=4, num_workers=2, multiprocessing_context="fork")
        for x in loader:
            model(x).square().sum().backward()
            optimizer.step()
    assert recorded.manifest["status"] == "closed"
    assert recorded.keys() == [
        f"{step}/0/0 {pass_}"
        for step in range(2)
        for pass_ in ("forward Linear.x", "forward Linear.w", "backward Linear.dy")
    ]


SCRIPT = """
import sys, torch, fp8debug
from fp8debug.hooks.clock import Clock
def train(name):
    model = torch.nn.Linear(2, 2)
    session = fp8debug.attach(model, run_dir=name, every=1, engine="torch")
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
    return session
train("left open")
train("used with").close("interrupted", "somebody asked")
Clock.forward = lambda *_: 1 / 0
train("disabled")
print("the script's own output")
sys.exit(7)
"""


def test_captures_that_nobody_closes_are_closed_at_exit(read_run: Callable[[Path], Recorded], tmp_path: Path) -> None:
    for name in ("pandas", "triton"):  # loaded by pyarrow and torch where they are installed, which takes seconds
        (tmp_path / f"{name}.py").write_text("raise ImportError\n")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout) == (7, "the script's own output\n")
    assert "Traceback" not in done.stderr
    runs = {name: read_run(tmp_path / name) for name in ("left open", "used with", "disabled")}
    status = {name: (run.manifest["status"], bool(run.manifest["closed_at"])) for name, run in runs.items()}
    assert status == {"left open": ("closed", True), "used with": ("interrupted", True), "disabled": ("disabled", True)}
    assert runs["used with"].manifest["status_reason"] == "somebody asked"
    assert len(runs["left open"].keys()) == len(runs["used with"].keys()) == 1 + 3 * 2
    assert runs["left open"].row("steps")["n_microbatches"] == 3
    assert runs["disabled"].row("events")["kind"] == "disabled"
    command: Any = json.loads((tmp_path / "left open/run.json").read_text())["command"]
    assert command == ["-c"]
