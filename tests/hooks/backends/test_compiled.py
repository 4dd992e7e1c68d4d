"""Layers inside torch.compile: what is recorded is what is recorded without it, and the training stays as it was."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fp8debug

if TYPE_CHECKING:
    from fp8debug.hooks.session import Session
    from tests.hooks.conftest import Attach, Recorded

TABLES = ("tensors", "scales", "errors", "histograms", "values", "channels", "gemms")
pytestmark = [  # what the compiler warns of by itself
    pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
]
Read = Callable[[Path], "Recorded"]


class Model(nn.Module):
    """Two layers around an activation in place."""

    def __init__(self, how: str = "plain") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(8, 12)
        self.norm = nn.LayerNorm(12)
        self.b = nn.Linear(12, 8, bias=False)
        self.how = how

    def body(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.norm(nn.functional.relu(self.a(x), inplace=True)))
        return y

    def forward(self, x: Tensor) -> Tensor:
        if self.how in ("reentrant", "checkpoint"):
            y: Tensor = checkpoint(self.body, x, use_reentrant=self.how == "reentrant")
            return y
        if self.how == "twice":
            return self.body(self.body(x))
        if self.how == "break":
            y = self.body(x)
            torch._dynamo.graph_break()
            return self.body(y)
        return self.body(x)


def train(model: nn.Module, call: Callable[[Tensor], Tensor], n_steps: int = 2, *, autocast: bool = False) -> Any:
    """Two micro-batches a step and one evaluation; returns losses and weights."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(n_steps):
        for _ in range(2):
            x = torch.randn(5, 3, 8, generator=generator).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                loss = call(x).float().square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [p.detach().clone() for p in model.parameters()]


def record(path: Path, model: nn.Module, **options: Any) -> Session:
    defaults = {"every": 1, "raw_every": 1, "tensors": ("x", "w", "dy", "y", "dx", "dw"), "engine": "torch"}
    return fp8debug.attach(model, run_dir=path, quiet=True, **{**defaults, **options})


def rows(run: Recorded, table: str) -> list[str]:
    """Everything but the order of observation, which is the compiler's."""
    return sorted(str({k: v for k, v in row.items() if k != "seq"}) for row in run.rows(table))


def same(one: Any, other: Any) -> bool:
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


@pytest.mark.captures(
    case="torch.compile",
    how="operators in the graph, at every step, `fullgraph=True` included",
    sees="what eager mode records, value by value: x, w, dy, y, dx, dw",
    limits="a layer that runs several times under activation checkpointing: its recomputed calls, and the dy of each, "
    "are numbered in the order of recomputation",
)
@pytest.mark.parametrize("how", ["plain", "autocast", "checkpoint", "reentrant", "twice", "break", "inplace", "layers"])
def test_what_eager_mode_records_and_the_same_training(tmp_path: Path, read_run: Read, how: str) -> None:
    outcomes = []
    options = {"detail": ("channels", "gemms") if how == "plain" else ()}
    for kind in ("bare", "compiled", "eager"):
        torch._dynamo.reset()
        model = Model(how)
        call: Callable[[Tensor], Tensor] = model
        session = record(tmp_path / kind, model, **options) if kind != "bare" else None
        if kind == "compiled" or (kind == "bare" and how == "plain"):
            call = compiled(model, how)
        outcomes.append(train(model, call, 2 if how == "plain" else 1, autocast=how == "autocast"))
        if session is not None:
            assert session.close().problems == []
    bare, watched, eager = outcomes
    assert same(bare, watched)
    assert same(bare, eager)
    runs = [read_run(tmp_path / kind) for kind in ("compiled", "eager")]
    again = how in ("checkpoint", "reentrant")
    for table in ("tensors", "scales", "errors", "values") if again else TABLES if how == "plain" else TABLES[:5]:
        # Without a compiler a recomputation stops before the last layer.
        found, expected = ([row for row in rows(run, table) if "'pass': 'recompute'" not in row] for run in runs)
        assert found
        assert found == expected, table
    said, expected_said = ([(row["kind"], row["layer"], row["message"]) for row in r.rows("events")] for r in runs)
    assert said == expected_said
    if again:
        recomputed = {row["layer"]: row for row in runs[0].rows("tensors", pass_="recompute", tensor="x", microbatch=0)}
        assert set(recomputed) == {"a", "b"}
        for layer, row in recomputed.items():
            first = runs[0].row("tensors", pass_="forward", tensor="x", microbatch=0, layer=layer)
            assert row["checksum"] == first["checksum"]


def compiled(model: Model, how: str) -> Callable[[Tensor], Tensor]:
    if how == "inplace":
        model.compile(backend="aot_eager")
        return model
    if how == "layers":
        model.a.compile(backend="aot_eager")
        model.b.compile(backend="aot_eager")
        return model
    call: Callable[[Tensor], Tensor] = torch.compile(model, backend="aot_eager", fullgraph=how != "break")
    return call


def test_inductor_trains_the_same_and_dyt_x_is_dw(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12, bias=False), nn.ReLU(inplace=True), nn.Linear(12, 8, bias=False))
    watched = copy.deepcopy(model)
    bare = train(model, torch.compile(model, fullgraph=True), 1)
    torch._dynamo.reset()
    with record(recorded.path, watched, tensors=("x", "w", "dy", "dw")):
        assert same(train(watched, torch.compile(watched, fullgraph=True), 1), bare)

    def value(layer: str, tensor: str, microbatch: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        found = recorded.rows("values", layer=layer, tensor=tensor, microbatch=microbatch)
        return np.array([row["values"] for row in sorted(found, key=lambda row: row["row"])], np.float64)

    for layer in "02":
        for microbatch in (0, 1):
            dw = value(layer, "dy", microbatch).T @ value(layer, "x", microbatch)
            np.testing.assert_allclose(value(layer, "dw", microbatch), dw, rtol=1e-4, atol=1e-7)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.a(x).relu()
        return y


def test_blocks_of_one_class_share_their_graph(attach: Attach, recorded: Recorded) -> None:
    """More of them than the compiler would make graphs for; with fullgraph it refuses one too many."""
    from torch._dynamo.utils import counters

    model = nn.Sequential(*(Block() for _ in range(10)))
    for block in model:
        block.compile(backend="aot_eager", fullgraph=True)
    counters.clear()
    x = torch.randn(3, 4).requires_grad_()
    with attach(model):
        model(x).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1
    value = x.detach()
    for k in range(10):
        row = recorded.row("tensors", layer=f"{k}.a", tensor="x")
        assert row["amax"] == pytest.approx(value.abs().max().item())
        value = model[k](value)
    assert len(recorded.rows("tensors", tensor="dy")) == 10


def two_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))


@pytest.mark.captures(
    case="torch.compile",
    how="attached after the first call: the graphs made so far are made again",
    sees="all that is seen when attached before",
    limits="graphs that come back without our operators: `0 of 2 layers fired in step 0`, and history_absent events",
)
def test_attached_after_the_first_call(
    attach: Attach, recorded: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C51: hooks that are registered after compilation never run; here they do."""
    model = two_layers()
    call = torch.compile(model, backend="eager")
    train(model, call, 1)
    with attach(model, quiet=False):
        train(model, call, 1)
    assert {row["layer"] for row in recorded.rows("tensors", step=0, tensor="dy")} == {"0", "1"}
    assert recorded.row("events")["kind"] == "reattached"
    assert "is made again at its next call" in capsys.readouterr().err


def test_silence_is_said_in_the_first_step_and_mended(
    attach: Attach, recorded: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C51, where the graphs cannot be made anew beforehand: 0 of 2 layers in the first step, said at its end."""
    model = two_layers()
    call = torch.compile(model, backend="eager")
    train(model, call, 1)
    with monkeypatch.context() as patched:
        patched.setattr("fp8debug.hooks.attachment.forget_graphs", lambda: False)
        session = attach(model, quiet=False)
    with session:
        train(model, call, 3)
    assert "0 of 2 layers fired in step 0" in capsys.readouterr().err
    assert {(row["kind"], row["layer"], row["step"]) for row in recorded.rows("events")} == {
        ("history_absent", "0", 0),
        ("history_absent", "1", 0),
    }
    assert [row["step"] for row in recorded.rows("steps")] == [0, 1, 2]
    assert {row["step"] for row in recorded.rows("tensors", tensor="dy")} == {1, 2}


def test_after_the_end_nothing_of_ours_is_in_the_graph(attach: Attach, recorded: Recorded) -> None:
    model = two_layers()
    graphs: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        graphs.append(graph.code)
        return graph.forward

    call = torch.compile(model, backend=backend)
    with attach(model):
        train(model, call, 1)
    train(model, call, 1)
    assert ["fp8debug" in code for code in graphs] == [True, False]


def test_an_error_of_ours_ends_the_capture_alone(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    model = two_layers()
    call = torch.compile(model, backend="aot_eager")
    bare = train(model, call)
    torch._dynamo.reset()
    model = two_layers()
    session = attach(model)
    monkeypatch.setattr(session._recorder, "record", lambda *args, **kwargs: 1 / 0)
    assert same(train(model, torch.compile(model, backend="aot_eager")), bare)
    assert not session.active
    assert "ZeroDivisionError" in session.close().problems[0]


def test_export_is_left_alone(attach: Attach) -> None:
    model = two_layers()
    with attach(model):
        exported = torch.export.export(model, (torch.randn(2, 8),))
    assert "fp8debug" not in exported.graph_module.code


SCRIPT = """
import sys, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.b(self.a(x).relu())

torch.manual_seed(0)
net = model = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

def step(x):
    loss = model(x).square().mean()
    loss.backward()
    return loss

if "{how}" == "wrapped":
    model = torch.compile(net, backend="eager")
elif "{how}" == "in place":
    net.compile(backend="eager")
elif "{how}" == "function":
    step = torch.compile(step, backend="eager")
for _ in range(2):
    loss = step(torch.randn(4, 8))
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""


@pytest.mark.parametrize("how", ["wrapped", "in place", "function"])
def test_scripts_that_know_nothing_of_us(tmp_path: Path, read_run: Read, how: str, warm_python: Any) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("{how}", how))
    options = ["--every", "1", "--out", "run"]
    watched = warm_python.run(tmp_path, "-m", "fp8debug", "attach", *options, str(script))
    assert watched.returncode == 0, watched.stderr
    run = read_run(tmp_path / "run")
    seen = {(row["step"], row["layer"], row["tensor"]) for row in run.rows("tensors")}
    assert seen == {(step, layer, tensor) for step in (0, 1) for layer in "ab" for tensor in ("x", "w", "dy")}
    assert [row["loss_source"] for row in run.rows("steps")] == ["backward", "backward"]
    assert float(watched.stdout) == pytest.approx(run.rows("steps")[-1]["loss"])
