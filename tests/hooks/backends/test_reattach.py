"""Modules that are put in the place of hooked ones while the capture runs."""

from __future__ import annotations

import gc
import timeit
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn

from fp8debug.hooks.backends.reattach import Structure

if TYPE_CHECKING:
    from tests.hooks.backends.conftest import Matrices
    from tests.hooks.conftest import Attach, Recorded


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.body(x))
        return y


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(32, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def events(run: Recorded) -> list[tuple[str, str]]:
    return [(event["kind"], event["layer"]) for event in run.rows("events")]


def shows(run: Recorded, **cells: object) -> set[str]:
    """Layers of which there is anything."""
    return {row["layer"] for row in run.rows("tensors", **cells)}


@pytest.mark.captures(
    case="modules replaced after attaching: conversion to FP8, quantisers, model.fc = new",
    how="the module tree is compared before each forward of the model and at each step",
    sees="the new module under the old name from its first forward on, with the event reattached",
    limits="a layer that is gone altogether is the event lost_hooks",
)
def test_replaced_before_the_next_forward(
    attach: Attach,
    recorded: Recorded,
    everything: dict[str, Any],
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, quiet=False, **everything):
        step(model, optimizer)
        model.head = nn.Linear(16, 4)
        model.body._modules["0"] = nn.Linear(16, 16)  # as some quantisers do it
        step(model, optimizer)
        model.body[2] = nn.Identity()
        step(model, optimizer)
        step(model, optimizer)
    assert [shows(recorded, step=n, tensor="dy") for n in range(4)] == [
        {"body.0", "body.2", "head"},
        {"body.0", "body.2", "head"},
        {"body.0", "head"},
        {"body.0", "head"},
    ]
    assert events(recorded) == [("reattached", "body.0"), ("reattached", "head"), ("lost_hooks", "body.2")]
    assert capsys.readouterr().err.splitlines()[2:4] == [
        "fp8debug: 2 replaced layers hooked again: body.0, head",
        "fp8debug: 1 lost layer no longer in the model: body.2",
    ]
    assert gradients_follow(matrices(recorded)) == {"body.0", "body.2", "head"}
    assert {x["name"]: x["out_features"] for x in recorded.manifest["layers"]} == {
        "body.0": 16,
        "body.2": 16,
        "head": 4,
    }


def test_torchao_conversion(attach: Attach, recorded: Recorded) -> None:
    from torchao.float8 import convert_to_float8_training
    from torchao.float8.config import Float8LinearConfig

    model = Net()
    with attach(model):
        convert_to_float8_training(model, config=Float8LinearConfig(emulate=True))
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert {event[1] for event in events(recorded) if event[0] == "reattached"} == {"body.0", "body.2", "head"}
    for tensor in ("x", "w", "dy"):
        assert shows(recorded, tensor=tensor) == {"body.0", "body.2", "head"}
    assert {x["class_name"] for x in recorded.manifest["layers"]} == {"Float8Linear"}


def test_adapters_inserted_while_it_runs(attach: Attach, recorded: Recorded) -> None:
    """The base layer goes on under its name; the adapters are taken where the selection takes them."""
    from peft import LoraConfig, get_peft_model

    model = Net()
    with attach(model, layers=["head"]):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["head", "0"]))
        step(adapted, torch.optim.SGD(adapted.parameters(), lr=0.1))
    assert shows(recorded, step=0) == {"head"}
    assert shows(recorded, step=1) == {"head", "head.lora_A.default", "head.lora_B.default"}
    assert events(recorded) == []


SCRIPT = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.body(x))

class Outer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.extra = model, nn.Linear(4, 4)

    def forward(self, x):
        return self.extra(self.model(x))

net = Net()
net(torch.ones(2, 4)).sum().backward()
net.head = nn.Linear(4, 4)
outer = Outer(net)
net.body = nn.Linear(4, 4)
optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
for _ in range(2):
    outer(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_unmodified_script_that_changes_its_model_before_the_first_step(
    recorded: Recorded, tmp_path: Path, warm_python: Any
) -> None:
    """Found again by whoever comes first: once, under the old name; and what wraps the model is a model too."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ["-m", "fp8debug", "attach", "--every", "1", "--out", str(recorded.path), str(script)]
    done = warm_python.run(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert shows(recorded, tensor="x", step=0, microbatch=0) == {"body", "head"}
    assert shows(recorded, tensor="x", step=1) == {"body", "head", "Outer#1.extra"}
    assert events(recorded) == [("reattached", "body"), ("reattached", "head")]


class Outer(nn.Linear):
    """A layer of its own around another one."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__(inner.in_features, inner.out_features)
        self.inner = inner

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = super().forward(input) + self.inner(input)
        return y


def test_a_layer_whose_name_another_takes_goes_by_its_new_one(attach: Attach, recorded: Recorded) -> None:
    model = Net()
    with attach(model, tensors=["x"]):
        model.head = Outer(model.head)
        model(torch.ones(1, 16))
    names = ["body.0", "body.2", "head.inner", "head"]
    assert recorded.keys() == [f"0/0/0 forward {name}.x" for name in names]
    assert events(recorded) == [("reattached", "head")]


def test_a_model_that_is_never_called_itself(attach: Attach, recorded: Recorded) -> None:
    """Its layers are looked at when a step is over, which the first of them to run tells."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model):
        for _ in range(2):
            model.head(model.body(torch.ones(2, 16))).sum().backward()
            optimizer.step()
            model.head = nn.Linear(16, 2)
    assert [shows(recorded, step=n, tensor="dy") for n in range(2)] == [{"body.0", "body.2", "head"}] * 2
    assert events(recorded) == [("reattached", "head")] * 2, "at the end of each step"


def test_nothing_is_kept_alive_and_nothing_stays_behind(attach: Attach, recorded: Recorded) -> None:
    model = Net()
    session = attach(model)
    gone = weakref.ref(model.head)
    model.head = nn.Linear(16, 16)
    model(torch.ones(1, 16))
    gc.collect()
    assert gone() is None
    session.close()
    model.head = nn.Linear(16, 16)
    model(torch.ones(1, 16))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert len(recorded.rows("tensors")) == 6, "x and w of three layers"
    alive = weakref.ref(model)
    del model
    gc.collect()
    assert alive() is None


def test_a_new_module_at_the_address_of_a_dead_one() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))
    for _ in range(50):
        structure = Structure(model)
        assert not structure.changed()
        del model[1]
        model.insert(1, nn.Linear(2, 2))
        assert structure.changed()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.add_module("new", nn.Linear(2, 2)),
        lambda model: model.empty.append(nn.Linear(2, 2)),
        lambda model: delattr(model, "head"),
        lambda model: setattr(model.body, "0", model.body[2]),
        lambda model: setattr(model, "body", nn.Sequential(*model.body)),
    ],
)
def test_every_change_is_seen(change: Callable[[Any], None]) -> None:
    model = Net()
    model.empty = nn.ModuleList()
    structure = Structure(model)
    model.train(False).requires_grad_(False).double()
    assert not structure.changed()
    change(model)
    assert structure.changed()


def test_looking_costs_little() -> None:
    """200 layers in 50 blocks; about 30 us on a quiet core."""
    blocks = [nn.ModuleDict({"attention": Net(), "mlp": nn.Linear(2, 2), "norm": nn.LayerNorm(2)}) for _ in range(50)]
    structure = Structure(nn.ModuleDict({"blocks": nn.ModuleList(blocks)}))
    assert min(timeit.repeat(structure.changed, number=20, repeat=30)) / 20 < 150e-6
