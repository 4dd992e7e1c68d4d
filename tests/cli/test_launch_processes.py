"""Launchers with nothing replaced: real processes that meet over gloo, real run directories."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from fp8debug.rundir import RunDir

if TYPE_CHECKING:
    from tests.cli.conftest import Place

TORCHRUN = (
    *("-m", "torch.distributed.run", "--nproc-per-node", "2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
)
MODEL = """
import gc, os, pathlib, sys, time
import torch
import torch.distributed as dist
from torch import nn

gc.freeze()  # what is imported stays, and the end of the process need not look through it

def train(rank, n_steps=3):
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(n_steps):
        model(torch.randn(4, 8)).square().sum().backward()
        if dist.is_initialized():
            for parameter in model.parameters():  # as DistributedDataParallel, which takes seconds to import
                dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
"""
TRAIN = (
    MODEL
    + """
dist.init_process_group("gloo")
train(dist.get_rank())
dist.destroy_process_group()
"""
)


FAILS_ONCE = (
    MODEL
    + """
rank, start = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
train(int(rank))
print(f"rank {rank}, start {start}, {sys.argv[1:]}\\n", end="", flush=True)
if start == "0":
    pathlib.Path(f"over-{rank}").touch()
    while not (os.path.exists("over-0") and os.path.exists("over-1")):
        time.sleep(0.02)
    sys.exit(3)
"""
)


def rows(run: Path, table: str, *columns: str) -> list[tuple[Any, ...]]:
    parts = RunDir(run).parts(table)
    return [tuple(row.values()) for part in parts for row in pq.read_table(part, columns=list(columns)).to_pylist()]


def python(place: Place, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=place.folder, capture_output=True, timeout=170, check=False)


@pytest.fixture(autouse=True)
def no_late_imports(place: Place) -> None:
    """Where they are installed, pyarrow loads the one and torch the other, in each process: seconds."""
    for name in ("pandas", "triton"):
        place.write(f"{name}.py", "raise ImportError\n")


Attach = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture
def attach(place: Place, warm_python: Any) -> Attach:
    """`fp8debug attach` in a process that has imported torch already; those that it starts are new ones."""

    def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = ("-m", "fp8debug", "attach", "--engine", "torch", "--detail", "none", *arguments)
        ran = warm_python.run(place.folder, *command)
        return subprocess.CompletedProcess(command, ran.returncode, ran.stdout.encode(), ran.stderr.encode())

    return run


def lines(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if line.startswith("fp8debug")]


@pytest.mark.captures(
    case="launchers",
    how="fp8debug attach -- torchrun, accelerate launch, srun, mpirun or python",
    sees="every rank, in one directory with one folder a rank; ranks that torchrun starts again go on as a new segment",
    limits="other launchers are refused with what to write by hand",
)
def test_torchrun_behind_attach_and_a_second_start(place: Place, attach: Attach) -> None:
    place.write("train.py", FAILS_ONCE)
    options = ("--layers", "a b|^0$", "--layers", "[0-9]$", "--exclude", "[a]$|^2$", "--out", "my run")
    command = (sys.executable, *TORCHRUN, "--max-restarts", "1", "train.py", "--lr", "1 0", "-q")
    ran = attach(*options, "--", *command)
    assert ran.returncode == 0, ran.stderr.decode()
    told = ["--lr", "1 0", "-q"]
    assert {f"rank {rank}, start 1, {told}" for rank in (0, 1)} <= set(ran.stdout.decode().splitlines())
    run = place.folder / "my run"
    said = lines(ran.stderr)
    assert said[-2:] == [
        "fp8debug: 2 of 2 ranks recorded 18 tensors in 3 steps: my run",
        "fp8debug: next: fp8debug report 'my run'",
    ]
    assert said.count("fp8debug: matched 1 of 2 GEMM layers") == 2, "rank 0, each time it starts"
    manifest = json.loads((run / "run.json").read_text())
    assert [layer["name"] for layer in manifest["layers"] if layer["matched"]] == ["0"]
    assert manifest["command"][-len(told) :] == told
    assert [s["segment"] for s in manifest["segments"]] == [0, 1]
    names = [s["launch"].rpartition(".") for s in manifest["segments"]]
    assert [attempt for *_, attempt in names] == ["0", "1"] and names[0][0] == names[1][0]
    assert manifest["segments"][1]["first_step"] == 3, "nothing was loaded: after the last that was recorded"
    assert set(rows(run, "tensors", "rank", "segment")) == {(r, s) for r in (0, 1) for s in (0, 1)}
    assert {kind for (kind,) in rows(run, "events", "kind")} == {"resumed", "assumption"}
    assert [(rank.rank, rank.world_size, rank.segment) for rank in RunDir(run).read_ranks()] == [(0, 2, 1), (1, 2, 1)]
    again = attach("--out", "my run", "--", "torchrun", "train.py")
    assert again.returncode == 2 and b"--out my run is not empty" in again.stderr


def test_torchrun_before_attach_without_a_directory(place: Place) -> None:
    """All ranks have one agent above them, though another process stands between."""
    place.write("train.py", TRAIN)
    place.write("between.py", "import subprocess, sys\nsys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))\n")
    ran = python(
        place, *TORCHRUN, "between.py", "-m", "fp8debug", "attach", "--engine", "torch", "--detail", "none", "train.py"
    )
    assert ran.returncode == 0, ran.stderr.decode()
    (run,) = (path for path in (place.folder / "fp8debug-runs").iterdir() if path.name != "latest")
    assert re.fullmatch(r"train-torchrun-\d+-\d+\.0", run.name)
    assert {rank for (rank,) in rows(run, "tensors", "rank")} == {0, 1}
    assert json.loads((run / "run.json").read_text())["world_size"] == 2


SPAWN = (
    MODEL
    + """
import torch.multiprocessing as mp

def work(index, store):
    rank = 1 - index  # not the index: the process group says it
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + store)
    train(rank)
    print(f"rank {rank}", flush=True)
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(os.path.abspath("store"),), nprocs=2)
    print("over", flush=True)
"""
)


@pytest.mark.captures(
    case="launchers",
    how="torch.multiprocessing.spawn, start_processes in an attached script",
    sees="every process, in one directory; its rank is that of the process group, else its index",
    limits="processes of multiprocessing.Process and subprocess are not reached; the last line counts them",
)
def test_spawned_processes(place: Place, attach: Attach) -> None:
    place.write("train.py", SPAWN)
    ran = attach("--out", "run", "train.py")
    assert ran.returncode == 0, ran.stderr.decode()
    assert sorted(re.findall(r"rank \d|over", ran.stdout.decode())) == ["over", "rank 0", "rank 1"]
    assert lines(ran.stderr)[-2:] == [
        "fp8debug: 2 of 2 ranks recorded 36 tensors in 3 steps: run",
        "fp8debug: next: fp8debug report run",
    ]
    run = place.folder / "run"
    assert {rank for (rank,) in rows(run, "tensors", "rank")} == {0, 1}
    manifest = json.loads((run / "run.json").read_text())
    assert (manifest["world_size"], manifest["status"]) == (2, "closed")
    assert manifest["command"][-1] == "train.py"


ACCELERATE = """
import gc, sys
import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(cpu=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
for step in range(2):
    accelerator.backward(model(torch.randn(4, 8)).square().sum())
    optimizer.step()
    optimizer.zero_grad()
print(f"{accelerator.process_index} {accelerator.num_processes} {sys.argv[1:]}\\n", end="", flush=True)
accelerator.end_training()
gc.freeze()
"""


def test_accelerate(place: Place, attach: Attach) -> None:
    n_ranks = 2
    place.write("train.py", ACCELERATE)
    launch = ["-m", "accelerate.commands.launch", "--num_processes", str(n_ranks), "--num_machines", "1"]
    launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--multi_gpu", "--main_process_port", "0"]
    ran = attach("--name", "two words", "--", sys.executable, *launch, "train.py", "--x")
    assert ran.returncode == 0, ran.stderr.decode()
    assert sorted(ran.stdout.decode().splitlines()) == [f"{rank} {n_ranks} ['--x']" for rank in range(n_ranks)]
    run = (place.folder / "fp8debug-runs/latest").resolve()
    assert re.fullmatch(r"train-\d{8}-\d{6}-two_words", run.name)
    assert {rank for (rank,) in rows(run, "tensors", "rank")} == set(range(n_ranks))
    assert f"fp8debug: {n_ranks} of {n_ranks} ranks recorded {12 * n_ranks} tensors in 2 steps: " in ran.stderr.decode()


WAITING = """
import signal, sys, time
import torch

model = torch.nn.Linear(4, 4)
for step in range(2):
    model(torch.ones(2, 4)).sum().backward()
print(sys.stdin.read(), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_training_and_its_end_is_ours(number: signal.Signals, place: Place) -> None:
    place.write("train.py", WAITING)
    command = ["-m", "fp8debug", "attach", "--engine", "torch", "--out", "run", "--", sys.executable, "train.py"]
    ran = place.python(*command, stop_with=number)
    assert ran.code == -number
    manifest = json.loads((place.folder / "run/run.json").read_text())
    assert manifest["status"] == "interrupted"
    assert lines(ran.err)[-2] == "fp8debug: 1 of 1 ranks recorded 5 tensors in 1 steps: run"
    assert ("KeyboardInterrupt" in ran.err.decode()) is (number == signal.SIGINT)


UNREACHED = """
import multiprocessing, subprocess, sys

def nothing():
    pass

if __name__ == "__main__":
    for method in ("spawn", "fork"):
        process = multiprocessing.get_context(method).Process(target=nothing)
        process.start()
        process.join()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    subprocess.run(["true"], check=True)
"""


def test_processes_that_are_not_reached_are_counted(place: Place, attach: Attach) -> None:
    place.write("train.py", UNREACHED)
    ran = attach("train.py")
    assert ran.returncode == 0
    (line,) = lines(ran.stderr)
    assert line.startswith(
        "fp8debug: NOTHING WAS RECORDED: the script started processes that are not watched (1 by multiprocessing, 1 by "
        "subprocess); no model with nn.Linear layers ran in this process"
    )


def test_an_exit_code_and_nothing_recorded(place: Place, attach: Attach) -> None:
    place.write("train.py", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)\n")
    ran = attach("--", sys.executable, "train.py")
    assert (ran.returncode, ran.stdout) == (7, b"out\n")
    assert ran.stderr.decode().splitlines()[0] == "err"
    assert lines(ran.stderr)[-1].startswith("fp8debug: NOTHING WAS RECORDED: no process wrote to fp8debug-runs/train-")
    assert list((place.folder / "fp8debug-runs").iterdir()) == []
    below = attach("--out", "train.py/run", "--", sys.executable, "train.py")
    assert (below.returncode, below.stdout) == (2, b"")
    assert re.match(r"fp8debug: --out .*train.py/run cannot be created: Not a directory", below.stderr.decode())
