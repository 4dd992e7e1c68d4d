"""`fp8debug doctor`: what it says of this place, and of scripts whose GEMMs are known."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 16)
        self.raw = nn.Parameter(torch.randn(24, 16) * 0.1)
        self.fc1, self.fc2, self.unused = nn.Linear(24, 16), nn.Linear(16, 8), nn.Linear(4, 4)
        self.attention = Attention()

    def forward(self, tokens):
        x = F.linear(self.table(tokens), self.raw)
        x = self.attention(torch.relu(self.fc1(x)))
        return self.fc2(x)

class Attention(nn.Module):
    def forward(self, x):
        return torch.softmax(x @ x.mT, -1) @ x

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
print("on standard output")
for step in range(100):
    net(torch.zeros(2, 5, dtype=torch.long)).square().mean().backward()
    optimizer.step()
    assert step == 0, "the first step is enough"
"""


Doctor = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def doctor(warm_python: Any, tmp_path: Path) -> Doctor:
    return lambda *arguments: warm_python.run(tmp_path, "-m", "fp8debug", "doctor", *arguments)


def test_here(tmp_path: Path, doctor: Doctor) -> None:
    done = doctor()
    assert (done.returncode, done.stderr) == (0, "")
    assert f"torch {torch.__version__}" in done.stdout
    assert [line.split() for line in done.stdout.splitlines() if "transformer_engine" in line] == [
        ["no", "transformer_engine", "not", "installed:", "transformer_engine"]
    ]
    assert list(tmp_path.iterdir()) == []


def test_script(tmp_path: Path, doctor: Doctor) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = doctor("--exclude", "fc2", "--json", "train.py")
    assert done.returncode == 0, done.stderr
    assert "on standard output" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    found: dict[str, Any] = json.loads(done.stdout)["script"]
    assert found["stepped"] is True
    layers = {layer["name"]: (layer["backend"], layer["matched"], layer["tensors"]) for layer in found["layers"]}
    everything = ["dy", "w", "x"]
    assert layers == {
        "raw": ("dispatch", True, everything),
        "fc1": ("modules", True, everything),
        "fc2": ("modules", False, []),
        "unused": ("modules", True, []),
    }
    gemms = {(g["module"], g["batch"], g["m"], g["k"], g["n"]): (g["count"], g["why_not"]) for g in found["gemms"]}
    activations = "of two activations: `--attention` records it"
    assert gemms == {
        ("Net", 1, 10, 16, 24): (1, None),
        ("fc1", 1, 10, 24, 16): (1, None),
        ("attention", 2, 5, 16, 5): (1, activations),
        ("attention", 2, 5, 5, 16): (1, activations),
        ("fc2", 1, 10, 16, 8): (1, "left out by the layer patterns"),
    }
    assert found["notes"] == ["1 matched layer never ran: unused"]


@pytest.mark.captures(
    case="fp8debug doctor [SCRIPT]",
    how="one step of the script, every GEMM counted beside the capture",
    sees="which layers and GEMMs would be recorded and which not, and why",
    limits="GEMMs inside fused attention kernels are not counted",
)
def test_words(tmp_path: Path, doctor: Doctor) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    lines = doctor("train.py").stdout.splitlines()
    assert lines[0] == "SCRIPT train.py: its first step was run"
    assert "LAYERS  4 of 4 GEMM layers would be recorded" in lines
    # 10x16x24 + 10x24x16 + 10x16x8 of those and 2 x 5x16x5 and 2 x 5x5x16 in the attention.
    assert (
        f"GEMMS   3 of 5 forward GEMMs of the step would be recorded, {8960 / 10560:.1%} of their multiplications"
        in lines
    )


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("print(1)", 1, "no model with GEMM layers ran in train.py"),
        ("raise KeyError('mine')", 1, "KeyError: 'mine'"),
    ],
)
def test_scripts_that_do_not_train(text: str, code: int, said: str, tmp_path: Path, doctor: Doctor) -> None:
    (tmp_path / "train.py").write_text(text)
    done = doctor("train.py")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr


def test_no_such_script(tmp_path: Path, doctor: Doctor) -> None:
    done = doctor("train.py")
    assert done.returncode == 2
    assert done.stderr.startswith("fp8debug: no such script: train.py")


def test_what_was_said_is_said_once(tmp_path: Path, doctor: Doctor) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nnet = torch.nn.Linear(4, 4)\nfor _ in range(2): net(torch.ones(2, 4)).sum().backward()\n"
    )
    done = doctor("train.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no optimizer stepped, so 2 micro-batches count as one step") == 1
