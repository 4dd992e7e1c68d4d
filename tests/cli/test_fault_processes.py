"""Real trainings under capture to which something happens: they print and exit as without us, and one line says it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Place

TRAIN = """
import os, resource, shutil, signal, subprocess, sys, threading
import torch
from torch import nn

signal.alarm(60)  # a hang is the end, and no exit code of a training

class DyingOnTheThread:
    def __init__(self, original):
        self.original = original
    def __call__(self, *arguments):
        if threading.current_thread() is not threading.main_thread():
            sys.exit(9)
        self.original(*arguments)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8):
    x = torch.randn(8, 16)
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex(), flush=True)
    if step == 3 and "fp8debug" in sys.modules:
        from fp8debug.hooks import flushing, recorder, writer
        flushing.flush_interval_s = lambda elapsed_s: -1.0  # each step goes to the disk, and so meets the fault
        exec(sys.argv[1])
print(sum(p.double().sum().item() for p in model.parameters()).hex(), torch.get_rng_state().sum().item())
sys.exit(5)
"""

FAULTS = {
    "the disk is full": (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (7000, resource.RLIM_INFINITY))",
        "File too large",
    ),
    "the directory was removed": ("shutil.rmtree('run')", "No such file or directory"),
    "the writer dies": ("writer.write_part = DyingOnTheThread(writer.write_part)", "the writer ended: SystemExit(9)"),
    "a hook raises": ("recorder.Recorder.record = lambda *a, **k: 1 / 0", "division by zero"),
}

Attach = Callable[..., tuple[int, str, str]]


def rows_of(query: str) -> list[tuple[Any, ...]]:
    """Of the files of a run, read without anything of ours."""
    return duckdb.connect().execute(query).fetchall()


@pytest.fixture
def attach(place: Place, warm_python: Any) -> Attach:
    """`fp8debug attach` in a process that has imported torch already."""

    def run(*arguments: str, **environment: str) -> tuple[int, str, str]:
        ran = warm_python.run(place.folder, "-m", "fp8debug", "attach", *arguments, **environment)
        return ran.returncode, ran.stdout, ran.stderr

    return run


@pytest.fixture(scope="module")
def bare(warm_python: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the training prints without us."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "train.py").write_text(TRAIN)
    ran = warm_python.run(folder, str(folder / "train.py"), "pass")
    assert ran.returncode == 5
    return str(ran.stdout)


def check_it_went_on(ran: tuple[int, str, str], bare: str, why: str) -> None:
    code, out, err = ran
    assert (code, out) == (5, bare)
    lines = [line for line in err.splitlines() if "disabled" in line]
    assert len([line for line in lines if line.startswith("fp8debug: disabled at step")]) == 1
    assert why in lines[0] and "the training goes on" in lines[0]
    assert "Traceback" not in err


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_disables_us_alone(fault: str, place: Place, attach: Attach, bare: str) -> None:
    source, why = FAULTS[fault]
    place.write("train.py", TRAIN)
    check_it_went_on(attach("--every", "1", "--out", "run", "train.py", source), bare, why)
    run = place.folder / "run"
    if fault == "the directory was removed":
        assert not run.exists()
        return
    manifest = json.loads((run / "run.json").read_text())
    assert manifest["status"] == "disabled" and why in manifest["status_reason"]
    events = rows_of(f"select message from '{run}/events/**/*.parquet' where kind = 'disabled'")
    assert len(events) == 1 and why in events[0][0]
    assert not list(run.rglob("*.tmp*"))


@pytest.fixture
def read_only(place: Place) -> Iterator[tuple[Path, str]]:
    """A folder, and what makes it read-only: modes, which root does not mind, so for root a mount of its own."""
    folder = place.folder / "disk"
    folder.mkdir()
    bind = f"mount --bind '{folder}' '{folder}' && mount -o remount,ro,bind '{folder}'"
    is_root = os.geteuid() == 0 and os.system(f"({bind}) 2>/dev/null && umount '{folder}'") == 0
    yield (
        folder,
        (
            f"subprocess.run({bind!r}, shell=True, check=True)"
            if is_root
            else "[os.chmod(found, 0o555) for found, _, _ in os.walk('disk')]"
        ),
    )
    if is_root:
        assert os.system(f"umount '{folder}'") == 0
    else:
        for found, _, _ in os.walk(folder):
            os.chmod(found, 0o755)


def test_a_directory_that_turns_read_only(read_only: tuple[Path, str], place: Place, attach: Attach, bare: str) -> None:
    folder, source = read_only
    place.write("train.py", TRAIN)
    ran = attach("--every", "1", "--out", "disk/run", "train.py", source)
    check_it_went_on(ran, bare, "Read-only file system" if os.geteuid() == 0 else "Permission denied")
    assert json.loads((folder / "run" / "run.json").read_text())["status"] == "running", "what was there, stays"


ODD = """
import signal, sys, warnings
import torch
from torch import nn
from torch.nn import functional as F

signal.alarm(60)
warnings.simplefilter("ignore")
torch.manual_seed(0)

class Codes(nn.Linear):
    def __init__(self, dtype):
        super().__init__(4, 4, bias=False)
        self.weight = nn.Parameter(torch.ones(4, 4).to(dtype), requires_grad=False)
    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.twofold = nn.Linear(4, 4, dtype=torch.float64), nn.Linear(4, 4, dtype=torch.complex64)
        self.codes, self.float8, self.plain = Codes(torch.int8), Codes(torch.float8_e4m3fn), nn.Linear(4, 4)
    def forward(self, x):
        ragged = torch.nested.nested_tensor([x[:1], x[1:]], layout=torch.jagged)
        sparse = F.linear(x.to_sparse(), self.plain.weight)
        y = self.plain(ragged).values() + self.float8(self.codes(x)) + sparse
        return self.wide(y.double()).sum() + self.twofold(y.to(torch.complex64)).abs().sum()

model = Net()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for step in range(3):
    loss = model(torch.randn(3, 4))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex(), flush=True)
"""


def test_dtypes_that_cannot_be_measured_are_told_once_and_the_losses_are_equal(
    place: Place, attach: Attach, warm_python: Any
) -> None:
    script = place.write("odd.py", ODD)
    bare = warm_python.run(place.folder, str(script))
    code, out, err = attach("--every", "1", "--raw-every", "1", "--out", "run", "odd.py")
    assert (code, out) == (bare.returncode, bare.stdout) == (0, bare.stdout)
    assert "disabled" not in err and "Traceback" not in err
    said = rows_of(
        f"select layer, count(*) from '{place.folder}/run/events/**/*.parquet' where kind = 'unsupported' group by 1"
    )
    assert {layer for layer, _ in said} == {"twofold", "codes", "plain"}
    assert max(n for _, n in said) <= 3, "once an operand"
    recorded = rows_of(
        "select layer, tensor, bool_and(status in ('ok', 'payload_only')) "
        f"from '{place.folder}/run/tensors/**/*.parquet' group by all"
    )
    assert {("wide", "x", True), ("wide", "dy", True), ("float8", "w", True)} <= set(recorded)


PROCESSES = """
import multiprocessing, os, signal, sys, threading, warnings
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.simplefilter("ignore")

class Made(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        with torch.no_grad():
            return nn.Linear(8, 64)(torch.ones(512, 8))  # a model in a worker, which is not the training's

def train(model, steps, batches=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        model(torch.randn(512, 64) if batches is None else batches[step]).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

def child():
    for _ in range(2):
        nn.Sequential(nn.Linear(64, 64))(torch.ones(512, 64))

if __name__ == "__main__":
    signal.alarm(100)
    torch.set_num_threads(1)
    models = nn.ModuleList([nn.Sequential(nn.Linear(64, 64)), nn.Sequential(nn.Linear(64, 64))])
    for model in models:
        model(torch.randn(512, 64))  # known to us before there are threads
    # What of torch a child cannot bear to be forked in the middle of: the first optimizer's imports, random numbers,
    # and in the child itself autograd.
    torch.optim.SGD(models.parameters(), lr=1e-3)
    batches = [torch.randn(512, 64) for _ in range(60)]
    threads = [threading.Thread(target=train, args=(model, 60, batches)) for model in models]
    for thread in threads:
        thread.start()
    for _ in range(6):  # forks of a process whose other threads are inside the kernels
        if (pid := os.fork()) == 0:
            child()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    fork = multiprocessing.get_context("fork").Process(target=child)
    fork.start()
    fork.join()
    for thread in threads:
        thread.join()
    loaded = list(DataLoader(Made(), num_workers=1, multiprocessing_context=sys.argv[1]))
    train(models[0], 2, [batch[0] for batch in loaded])
    print("children", fork.exitcode, len(loaded))
"""


def test_threads_forks_workers_and_children_beside_the_kernels(place: Place, attach: Attach) -> None:
    """No abort, no hang, nothing recorded twice, and every pass of both threads is there."""
    place.write("train.py", PROCESSES)
    code, out, err = attach("--every", "1", "--out", "run", "train.py", "fork", FP8DEBUG_ENGINE="numba")
    assert (code, out) == (0, "children 0 4\n"), err
    assert "disabled" not in err
    run = place.folder / "run"
    assert [path.name for path in run.glob("rank=*.lock")] == ["rank=0.lock"]
    rows = rows_of(f"select layer, pass, count(*), count(distinct seq) from '{run}/tensors/**/*.parquet' "
                      "where tensor in ('x', 'dy') group by all")  # fmt: skip
    assert all(n == distinct for *_, n, distinct in rows)
    by_pass = Counter(dict.fromkeys(("forward", "backward"), 0))
    for _, pass_, n, _ in rows:
        by_pass[pass_] += n
    assert by_pass == {"forward": 2 + 2 * 60 + 2, "backward": 2 * 60 + 2}
    counts = rows_of(
        f"select n, n_of from (select seq, n - n_nan as n from '{run}/tensors/**/*.parquet') join "
        f"(select seq, sum(count) as n_of from '{run}/histograms/**/*.parquet' group by seq) using (seq) "
        "where n <> n_of"
    )
    assert not counts, "two threads counted into one table"
