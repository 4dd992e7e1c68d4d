"""`fp8debug attach` with nothing replaced: real processes, a real model, real run directories."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from fp8debug.rundir import RunDir

if TYPE_CHECKING:
    from tests.cli.conftest import Place

TRAIN = """
import os, signal, sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    x = torch.randn(8, 16)
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex(), flush=True)
    if step == 3:
        exec(sys.argv[1])
print(torch.get_rng_state().sum().item())
"""


@pytest.fixture
def training(place: Place) -> Place:
    place.write("train.py", TRAIN)
    return place


def manifest(place: Place) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((place.folder / "run" / "run.json").read_text())
    return document


def steps_of(place: Place, table: str) -> set[int]:
    parts = RunDir(place.folder / "run").parts(table)
    return {step for part in parts for step in pq.read_table(part, columns=["step"])["step"].to_pylist()}


Attach = Callable[..., tuple[int, bytes, str]]


@pytest.fixture
def attach(place: Place, warm_python: Any) -> Attach:
    """`fp8debug attach` in a process that has imported torch already."""

    def run(*arguments: str) -> tuple[int, bytes, str]:
        ran = warm_python.run(place.folder, "-m", "fp8debug", "attach", *arguments)
        return ran.returncode, ran.stdout.encode(), ran.stderr

    return run


def test_training_is_recorded_and_does_not_notice(training: Place, attach: Attach, warm_python: Any) -> None:
    code, out, err = attach("--every", "2", "--layers", "2", "--out", "run", "train.py", "pass")
    bare = warm_python.run(training.folder, "train.py", "pass")
    assert (code, out.decode()) == (bare.returncode, bare.stdout) == (0, bare.stdout)
    lines = err.splitlines()
    assert "fp8debug: recording to run" in lines
    assert "fp8debug: matched 1 of 2 GEMM layers" in lines
    assert lines[-2:] == ["fp8debug: recorded 18 tensors in 6 steps: run", "fp8debug: next: fp8debug report run"]
    assert manifest(training)["status"] == "closed"
    assert manifest(training)["command"][:3] == ["fp8debug", "attach", "--every"]
    assert steps_of(training, "tensors") == {0, 1, 2, 3, 4, 5}
    assert steps_of(training, "errors") == {0, 2, 4}
    again = attach("--out", "run", "train.py", "pass")
    assert again[0] == 2
    assert again[2].startswith("fp8debug: --out run is not empty") and again[2].count("\n") == 1


ENDS = {
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "interrupted", "KeyboardInterrupt"),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM, "interrupted", "SIGTERM"),
    "exception": ("raise ValueError('loss is NaN')", 1, "failed", "ValueError: loss is NaN"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_cut_training_keeps_every_step_it_made(training: Place, end: tuple[str, int, str, str], attach: Attach) -> None:
    source, code, status, reason = end
    ended = attach("--out", "run", "train.py", source)
    assert ended[0] == code
    assert ended[1].count(b"\n") == 4
    assert (manifest(training)["status"], manifest(training)["status_reason"]) == (status, reason)
    assert steps_of(training, "tensors") == steps_of(training, "steps") == {0, 1, 2, 3}


def test_layers_are_listed_and_nothing_is_trained_or_written(training: Place, attach: Attach) -> None:
    code, out, err = attach("--list-layers", "--exclude", "0", "train.py", "pass")
    assert (code, out.decode().splitlines()) == (0, ["- 0  Linear 16x32", "+ 2  Linear 32x16"])
    assert err == "fp8debug: matched 1 of 2 GEMM layers\n"
    assert not (training.folder / "fp8debug-runs").exists()


def test_regex_that_matches_nothing_stops_before_the_first_step(training: Place, attach: Attach) -> None:
    code, out, err = attach("--layers", "mlp", "train.py", "pass")
    assert (code, out) == (2, b"")
    assert err.startswith("fp8debug: --layers 'mlp' matches none of the 2 GEMM layers") and err.count("\n") == 1
    assert not (training.folder / "fp8debug-runs").exists()


def test_script_without_a_model_is_told_so(place: Place, attach: Attach) -> None:
    place.write("train.py", "import multiprocessing\n")
    code, _, err = attach("train.py")
    assert code == 0
    assert err.startswith("fp8debug: NOTHING WAS RECORDED: no model with nn.Linear layers ran in this process")
    assert not (place.folder / "fp8debug-runs").exists()


def test_traceback_has_no_frame_of_ours_even_where_we_wrap_torch(training: Place, attach: Attach) -> None:
    code, _, err = attach("-q", "--out", "run", "train.py", "loss.backward()")
    bare = training.python("train.py", "loss.backward()")
    assert code == bare.code == 1
    assert "second time" in err
    assert err == bare.err.decode()
