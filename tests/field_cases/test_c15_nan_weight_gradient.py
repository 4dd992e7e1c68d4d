"""C15: the loss is finite, one weight gradient has a NaN, and the job ends as a success."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fp8debug.analysis import open_run
from fp8debug.analysis.checkpoint import audit_checkpoint
from fp8debug.analysis.diagnosis import diagnose
from fp8debug.cli.main import main
from fp8debug.config import CaptureOptions
from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.entry import open_session
from fp8debug.hooks.plan import CapturePlan
from fp8debug.hooks.session import Session

if TYPE_CHECKING:
    from tests.field_cases.conftest import Normal, Opened, Replay


class Expert(nn.Module):
    """w_down(w_gate(x) * w_up(x))."""

    def __init__(self) -> None:
        super().__init__()
        self.w_gate, self.w_up, self.w_down = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.w_down(self.w_gate(x) * self.w_up(x))
        return y


@pytest.mark.parametrize("clipped", [False, True], ids=["plain", "clipped"])
def test_the_origin_is_named(clipped: bool, tmp_path: Path, opened: Opened) -> None:
    torch.manual_seed(0)
    model = Expert()
    poisoned = False

    def poison(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[2, 1] = math.nan if poisoned else gradient[2, 1]
        return gradient

    model.w_down.weight.register_hook(poison)
    session = session_on(model, tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        poisoned = step == 1
        model(torch.ones(3, 8)).square().mean().backward()
        if clipped:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    session.close()
    run = opened()
    gradient, first = run.sql(
        "select step, layer, tensor, message from events where kind = 'nonfinite' order by tensor"
    ).fetchall()
    assert gradient[:3] == (1, "w_down", "dw")
    assert "step 1, wgrad" in gradient[3]
    # What follows of it: every operand of step 1 was finite, the poisoned weights are read in step 2.
    assert first[0] == 2 and (first[1], first[2]) == (("w_gate", "w") if clipped else ("w_down", "w"))
    found = diagnose(run)[0]
    assert (found.rule, found.severity, found.confidence) == ("nonfinite", "error", "certain")
    assert (found.worst.layer, found.worst.tensor, found.worst.gemm, found.first_step) == ("w_down", "dw", "wgrad", 1)
    assert "step 1, wgrad, rank 0: w_down dw; produced by this wgrad: x and dy were finite" in found.message
    assert "it reached" in found.message
    losses = [loss for (loss,) in run.sql("select losses from steps order by step").fetchall()]
    assert [math.isnan(loss) for (loss,) in losses] == [False, False, True]


def session_on(model: nn.Module, folder: Path) -> Session:
    options = CaptureOptions(out=str(folder / "run"), every=1, engine="torch", recipes=("current",))
    session = open_session(
        CapturePlan.from_options(options), command=["train.py"], script="train.py", say=lambda _: None,
        measure_gradients=True,
    )  # fmt: skip
    session.attach_layers(model, find_layers(model))
    return session


def test_an_overflow_that_a_scaler_skips_is_none(tmp_path: Path, opened: Opened) -> None:
    model = Expert()
    session = session_on(model, tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    loss = model(torch.ones(3, 8)).square().mean()
    scaler.scale(loss).backward()
    assert model.w_up.weight.grad is not None
    model.w_up.weight.grad[0, 0] = math.inf
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    session.close()
    run = opened()
    assert run.sql("select skipped, isinf(grad_norm) from steps").fetchall() == [(True, True)]
    assert run.sql("from events where kind = 'nonfinite'").fetchall() == []
    assert diagnose(run) == ()


def test_many_layers_are_named_in_part(tmp_path: Path, opened: Opened) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
    session = session_on(model, tmp_path)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.ones(3, 4)).sum().backward()
        for p in model.parameters():
            p.grad = torch.full_like(p, math.nan)
        optimizer.step()
    session.close()
    events = (
        opened().sql("select step, layer, message from events where kind = 'nonfinite' and tensor = 'dw'").fetchall()
    )
    assert [event[:2] for event in events] == [(0, str(layer)) for layer in range(8)]
    assert events[0][2] == "step 0, wgrad: the weight gradient has NaN or Inf, like those of 9 other layers"


def test_a_scan_of_the_poisoned_checkpoint_lists_the_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Expert()
    poisoned = dict(model.state_dict())
    poisoned["w_down.weight"][2, 1] = math.nan
    poisoned["w_up.bias"][3] = math.inf
    save_file(poisoned, tmp_path / "step2.safetensors")
    audit = audit_checkpoint(tmp_path / "step2.safetensors")
    (found,) = audit.findings
    assert (found.check, found.severity, audit.n_errors) == ("nonfinite", "error", 1)
    assert {place.tensor: place.message for place in found.places} == {
        "w_down.weight": "w_down.weight: 1 NaN of 24, in row 2.",
        "w_up.bias": "w_up.bias: 1 infinite of 6.",
    }
    assert main(["checkpoint", str(tmp_path / "step2.safetensors")]) == 3
    assert "w_down.weight" in capsys.readouterr().out


BAD = ("nan", "inf", "-inf")


@pytest.mark.parametrize("replay", [{"layers": ("up", "down")}], indirect=True)
@pytest.mark.parametrize(
    ("tensor", "layer", "says"),
    [
        (
            "w",
            "up",
            "fprop, rank 0: up w, row 3; the weight itself: written by the last update; it reached 1 other layer",
        ),
        ("x", "down", "fprop, rank 0: down x, row 3; produced before it, after the last finite record, up y"),
        ("dy", "down", "dgrad, rank 0: down dy, row 3; produced before it, after the last finite record, down y"),
        ("dw", "down", "wgrad, rank 0: down dw, row 3; produced by this wgrad: x and dy were finite"),
        ("y", "up", "fprop, rank 0: up y, row 3; produced by this fprop: x and w were finite"),
    ],
)
def test_producer_and_propagator_are_told_apart(
    tensor: str, layer: str, says: str, replay: Replay, opened: Opened, normal: Normal
) -> None:
    is_broken = False
    order = ["x", "w", "y"], ["dy", "dx", "dw"]
    for step in range(4):
        for tensors, layers in zip(order, (("up", "down"), ("down", "up")), strict=True):
            for name in layers:
                for which in tensors:
                    value = normal(8, 16, seed=step)
                    is_broken |= (step, name, which) == (2, layer, tensor)
                    if is_broken:
                        value[3, 1] = float(BAD[step % 3])
                    replay.observe(which, value, step=step, layer=name)
    replay.session.close()
    found = diagnose(opened())[0]
    assert found.rule == "nonfinite" and len(found.places) == 1
    assert found.message.startswith("the first value that is not finite: step 2, micro-batch 0, ")
    assert says in found.message
    assert (found.worst.layer, found.worst.tensor, found.first_step) == (layer, tensor, 2)


@pytest.mark.parametrize("what", ["loss", "grad_norm"])
def test_what_no_tensor_shows_comes_from_outside(what: str, synthetic_run: ModuleType, tmp_path: Path) -> None:
    written = synthetic_run.SyntheticRun(tmp_path / "run")
    for step in range(3):
        written.add("fc", "x", np.ones((8, 16), np.float32), step=step)
        reported = {"loss": 1.0, "grad_norm": 1.0} | ({what: math.nan} if step > 0 else {})
        written.add_row("steps", step=step, **reported, losses=[1.0, reported["loss"]])
    with open_run(written.write()) as run:
        (found,) = diagnose(run)
    assert (found.rule, found.worst.layer, found.first_step) == ("nonfinite", None, 1)
    assert "produced outside the recorded layers" in found.message
    assert ("the loss of step 1, micro-batch 1" if what == "loss" else "the gradient norm of step 1") in found.message


def test_the_lowest_rank_at_the_same_moment_is_named(synthetic_run: ModuleType, tmp_path: Path) -> None:
    written = synthetic_run.SyntheticRun(tmp_path / "run", world_size=2)
    for step in range(2):
        for rank in (1, 0):
            x = np.ones((8, 16), np.float32)
            x[5] = np.nan if step == 1 else 1
            written.add("fc", "x", x, step=step, rank=rank, placement="shard(0)", shard=f"{rank}/2")
    with open_run(written.write()) as run:
        found = diagnose(run)[0]
    assert (found.rule, found.worst.rank, found.first_step) == ("nonfinite", 0, 1)
