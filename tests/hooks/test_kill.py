"""kill -9 at random instants: what was flushed is there, the run is known to be dead, the training's file is whole."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import torch

from fp8debug.analysis.liveness import liveness
from fp8debug.analysis.run import open_run
from fp8debug.rundir import RunDir

if TYPE_CHECKING:
    from tests.hooks.conftest import Zygote

DELAYS_S = [random.Random(20260730).uniform(0.0, 0.25) for _ in range(8)]


@pytest.fixture(scope="module")
def losses() -> list[str]:
    """The first lines of the training's own file, without us."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
    lines = []
    for step in range(200):
        x = torch.randn(6, 16, generator=torch.Generator().manual_seed(step))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        lines.append(f"{step} {loss.item().hex()}")
    return lines


def test_kill_9_at_random_instants(zygote: Zygote, losses: list[str], tmp_path: Path) -> None:
    for number, delay_s in enumerate(DELAYS_S):
        folder, output = tmp_path / str(number), tmp_path / f"{number}.txt"
        pid = zygote.start("endless_with_output", folder, environment={"OUTPUT": str(output)})
        deadline = time.monotonic() + 60
        while not (output.exists() and output.stat().st_size):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(delay_s)
        run = RunDir(folder / "run")
        before = {part: part.read_bytes() for table in ("steps", "tensors") for part in run.parts(table)}
        os.kill(pid, signal.SIGKILL)
        assert zygote.wait() == signal.SIGKILL

        written = output.read_text().split("\n")
        assert written[:-1][:200] == losses[: len(written) - 1], "up to the kill, bit for bit"
        assert losses[len(written) - 1 :][:1] == [] or losses[len(written) - 1].startswith(written[-1])
        assert liveness(run, run.read_manifest()).status == "killed"
        n_rows = {table: sum(pq.ParquetFile(part).metadata.num_rows for part in run.parts(table))
                  for table in ("steps", "tensors")}  # fmt: skip
        with open_run(run.path) as opened:
            (seen,) = opened.sql("select count(*) from steps").fetchall()
            assert seen == (n_rows["steps"],)
            steps = [step for (step,) in opened.sql("select step from steps order by step").fetchall()]
        assert steps == list(range(len(steps))), "each flushed step once, none of them lost"
        for part, content in before.items():
            assert part.read_bytes() == content or part not in run.parts(part.parts[-3]), "a part never changes"
