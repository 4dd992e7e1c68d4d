"""Optimizer states as tensors: after the step, of the step, under the name of the layer that owns the weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fp8debug.formats import E4M3, fake_quantize
from fp8debug.hooks.measure.loading import load_engine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.hooks.conftest import Attach, Recorded

BETAS = (0.75, 0.5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.a = nn.Linear(4, 5)
        self.b = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x).relu())
        return y


def train(model: nn.Module, optimizer: torch.optim.Optimizer, n_steps: int = 3) -> list[dict[str, Tensor]]:
    """Train; the gradient of each weight in each step, micro-batches summed."""
    gradients = []
    for step in range(n_steps):
        for part in range(2):
            x = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * step + part))
            model(x).square().mean().backward()
        gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
        optimizer.zero_grad()
    return gradients


def averages(gradients: list[dict[str, Tensor]], name: str) -> list[tuple[Tensor, Tensor]]:
    """(exp_avg, exp_avg_sq) of one parameter after each step, by the formula of Adam (arXiv:1412.6980)."""
    m = v = torch.zeros_like(gradients[0][name])
    states = []
    for found in gradients:
        g = found[name]
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
        states.append((m, v))
    return states


@pytest.mark.captures(
    case="optimizer states",
    how="after each optimizer step; Adam, AdamW and relatives, plain, foreach, fused or amsgrad",
    sees="m (exp_avg) and v (exp_avg_sq) of each layer's weight, of the step just ended; health at every step",
    limits="an optimizer that keeps neither: event not_captured; of amsgrad not the running maximum",
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.Adam, {"foreach": False}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.Adam, {"amsgrad": True}),
    ],
)
def test_states_after_the_step(
    attach: Attach, recorded: Recorded, kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    model = Net()
    optimizer = kind(model.parameters(), lr=1e-3, betas=BETAS, **options)  # type: ignore[call-arg]
    with attach(model, tensors="w,m,v", raw_every=1, every=2):
        gradients = train(model, optimizer)
    for layer in ("a", "b"):
        expected = averages(gradients, f"{layer}.weight")
        for tensor, place in (("m", 0), ("v", 1)):
            rows = recorded.rows("tensors", layer=layer, tensor=tensor)
            assert [(r["step"], r["microbatch"], r["call"], r["pass"], r["sampled"]) for r in rows] == [
                (0, 0, 0, "backward", True),
                (1, 0, 0, "backward", False),
                (2, 0, 0, "backward", True),
            ]
            for row, states in zip(rows, expected, strict=True):
                state = states[place].numpy()
                values = recorded.rows("values", layer=layer, tensor=tensor, step=row["step"])
                np.testing.assert_allclose(np.stack([v["values"] for v in values]), state, rtol=2e-6, atol=1e-12)
                assert row["amax"] == pytest.approx(float(np.abs(state).max()), rel=1e-6)
                assert (row["shape"], row["dtype"], row["placement"]) == (list(state.shape), "float32", "local")
    assert recorded.manifest["tensors"] == ["w", "m", "v"]
    assert not recorded.rows("events")


def test_recipes_treat_them_as_weights(attach: Attach, recorded: Recorded) -> None:
    """E4M3, with the scale of the state's own amax; details of channels, none of blocks and GEMMs."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS)
    with attach(model, tensors="x,w,dy,m,v", raw_every=1, recipes="current"):
        train(model, optimizer, 1)
    row = recorded.row("errors", layer="a", tensor="v", recipe="current")
    values = np.array([v["values"] for v in recorded.rows("values", layer="a", tensor="v")], np.float32)
    scale = np.float32(448) / np.abs(values).max()
    dequantised = fake_quantize(values * scale, E4M3).astype(np.float64) / float(scale)
    assert (row["fmt"], row["alternate"], row["scale"]) == ("E4M3", False, scale)
    assert row["sum_err2"] == pytest.approx(np.square(values.astype(np.float64) - dequantised).sum(), rel=1e-4)
    assert {r["axis"] for r in recorded.rows("channels", tensor="m")} == {"N", "K"}
    assert not recorded.rows("blocks", tensor="m")
    assert not recorded.rows("events")


def test_no_such_states(attach: Attach, recorded: Recorded) -> None:
    """Said once, however many steps; the other optimizer's are recorded."""
    model = Net()
    with attach(model, tensors="x,m,v"):
        sgd = torch.optim.SGD(model.a.parameters(), lr=0.1, momentum=0.9)
        adam = torch.optim.Adam(model.b.parameters(), betas=BETAS)
        for _ in range(2):
            model(torch.ones(2, 4)).square().mean().backward()
            sgd.step()
            adam.step()
            model.zero_grad()
    (event,) = recorded.rows("events")
    assert event["kind"] == "not_captured" and event["message"].startswith("SGD keeps no exp_avg")
    assert {r["layer"] for r in recorded.rows("tensors") if r["tensor"] in "mv"} == {"b"}


class Stored(Tensor):
    """A state in 8 bits, as torchao's optimizers keep it: codes, a scale, and a method that undoes both."""

    scale = torch.tensor(0.25)

    def dequantize(self) -> Tensor:
        return self.as_subclass(Tensor) * self.scale


class LowBitAdam(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            self.state[p] = {"exp_avg": torch.full_like(p.detach(), 3.0).as_subclass(Stored)}


def test_stored_in_8_bits(attach: Attach, recorded: Recorded) -> None:
    """What the codes stand for."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    optimizer = LowBitAdam(model.parameters(), lr=1e-3)
    with attach(model, tensors="m,v", raw_every=1):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    assert [v["values"] for v in recorded.rows("values", tensor="m")] == [[0.75] * 4] * 3
    assert not recorded.rows("tensors", tensor="v")


def test_another_engine_and_autograd_see_nothing_of_it(attach: Attach) -> None:
    """Bit-equal weights and states with and without."""
    assert load_engine("torch") is not None
    results = []
    for on in (False, True):
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS)
        if on:
            with attach(model, tensors="m,v"):
                train(model, optimizer)
        else:
            train(model, optimizer)
        results.append([*model.parameters(), *(s["exp_avg_sq"] for s in optimizer.state.values())])
    assert all(map(torch.equal, *results))


WORKER = """
import os, sys, torch, fp8debug
from torch import nn
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
with fp8debug.attach(model, tensors="m,v", every=1, raw_every=1, engine="torch", quiet=True, run_dir=sys.argv[1]):
    for step in range(2):
        model(torch.randn(4, 8, generator=torch.Generator().manual_seed(step + rank))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
state = optimizer.state[model[2].weight]["exp_avg_sq"]
torch.save(state.to_local(), f"{sys.argv[1]}/state-{rank}.pt")
torch.distributed.destroy_process_group()
"""


def test_shards(tmp_path: Path, read_run: Callable[[Path], Recorded], warm_python: Any) -> None:
    """FSDP2: each rank records its shard, and says so."""
    run = tmp_path / "run"
    (tmp_path / "worker.py").write_text(WORKER)
    ranks = warm_python.start_ranks(2, tmp_path, str(tmp_path / "worker.py"), str(run))
    assert [(done.returncode, done.stderr) for done in [rank.wait() for rank in ranks]] == [(0, "")] * 2
    recorded = read_run(run)
    for rank in (0, 1):
        row = recorded.row("tensors", layer="2", tensor="v", step=1, rank=rank)
        assert (row["placement"], row["shard"], row["shape"]) == ("shard(0)", f"{rank + 1}/2", [2, 6])
        values = recorded.rows("values", layer="2", tensor="v", step=1, rank=rank)
        local = torch.load(run / f"state-{rank}.pt")
        np.testing.assert_array_equal(np.array([v["values"] for v in values], np.float32), local.numpy())
        assert row["amax"] == pytest.approx(local.abs().max().item()) and math.isfinite(row["amax"])
