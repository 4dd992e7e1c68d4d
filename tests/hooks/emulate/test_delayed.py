"""Delayed scaling with its memory: the scale of every cast follows Transformer Engine's order of updates.

The expected scales come from a replay in this file: amaxes taken by plain hooks, a list as history. The emulated ones
are what the layers say they were cast with, and what comes out of a layer shows that it is true.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fp8debug
from fp8debug.hooks.emulate.linear import emulated_forward
from fp8debug.recipes import parse_recipe
from fp8debug.replay import Moment, ScaleSimulator

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

LENGTH, MARGIN = 3, 1
RECIPE = f"delayed:amax_history_len={LENGTH},margin={MARGIN}"
LARGEST = {"x": 448.0, "w": 448.0, "dy": 57344.0}
Key = tuple[str, str]


class Model(nn.Module):
    """A layer used twice in each pass, a block that is recomputed, and a head."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.twice = nn.Linear(16, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16, bias=False))
        self.head = nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(self.twice(x) * 3)
        y: Tensor = self.head(checkpoint(self.block, h, use_reentrant=self.reentrant))
        return y


@dataclass
class History:
    """One tensor's: what it saw since the last update, the last amaxes, the scale."""

    largest: float
    scale: np.float32 = field(default_factory=lambda: np.float32(1.0))
    seen: float = 0.0
    window: list[float] = field(default_factory=list)

    def update(self) -> None:
        if self.seen:
            self.window = [*self.window, self.seen][-LENGTH:]
            self.scale = np.float32(self.largest * 2.0**-MARGIN / max(self.window))
        self.seen = 0.0


class Replay:
    """Expected and told scales of every pass of every layer, as (pass, layer, tensor, scale)."""

    def __init__(self, model: nn.Module) -> None:
        self.phase = "forward"
        self.expected: list[tuple[str, str, str, float]] = []
        self.told: list[tuple[str, str, str, float]] = []
        self.histories: defaultdict[Key, History] = defaultdict(lambda: History(0.0))
        self._cast_in_step: set[str] = set()
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                for tensor, largest in LARGEST.items():
                    self.histories[name, tensor] = History(largest)
                module.register_forward_hook(lambda m, args, y, n=name: self._forward(n, m, args[0], y))

    def update(self, *tensors: str) -> None:
        for (_, tensor), history in self.histories.items():
            if tensor in tensors:
                history.update()

    def step(self) -> None:
        self.update("w")
        self._cast_in_step.clear()

    def _forward(self, layer: str, module: nn.Linear, x: Tensor, y: Tensor) -> None:
        pass_ = "recompute" if self.phase == "backward" else self.phase
        if pass_ == "eval":  # reads what the next forward will have
            return
        self._see(layer, module, "x", x, pass_)
        if pass_ == "forward" and layer not in self._cast_in_step:
            self._cast_in_step.add(layer)
            self._see(layer, module, "w", module.weight, pass_)
        else:
            self._see(layer, module, "w", None, pass_)
        forward = emulated_forward(module)
        assert forward is not None and forward.last_call is not None
        call = forward.last_call
        if y.requires_grad:  # not in the first pass of reentrant checkpointing
            y.register_hook(lambda gradient: self._see(layer, module, "dy", gradient, "backward", call))

    def _see(
        self, layer: str, module: nn.Linear, tensor: str, value: Tensor | None, pass_: str, call: Any = None
    ) -> None:
        history = self.histories[layer, tensor]
        self.expected.append((pass_, layer, tensor, float(history.scale)))
        if call is None:
            forward = emulated_forward(module)
            assert forward is not None
            call = forward.last_call
        (told,) = call.scales_in_force(tensor)
        assert told.recipe == f"delayed:amax_history_len={LENGTH},margin={MARGIN}"
        self.told.append((pass_, layer, tensor, float(told.scale)))
        if value is not None and pass_ in ("forward", "backward"):
            history.seen = max(history.seen, value.detach().abs().max().item())


SIZES = [1, 0.5, 64, 2, 1, 0.25, 1e-3, 0, 3, 1, 1, 2]


@pytest.mark.parametrize("reentrant", [False, True], ids=["checkpoint", "reentrant"])
def test_scales_of_every_cast(reentrant: bool) -> None:
    torch.manual_seed(3)
    model = Model(reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with fp8debug.emulate(model, RECIPE, quiet=True):
        replay = Replay(model)
        for microbatch, size in enumerate(SIZES):
            replay.update("x")  # after the last forward, but its recomputation has read the scale it had
            replay.phase = "forward"
            x = (torch.randn(5, 16, generator=torch.Generator().manual_seed(microbatch)) * size).requires_grad_()
            loss = model(x).square().mean()
            replay.phase = "backward"
            loss.backward()
            replay.update("dy")
            if microbatch % 2:
                optimizer.step()
                optimizer.zero_grad()
                replay.step()
                replay.phase = "eval"
                model.eval()
                model(torch.full((1, 16), 1e4))
                model.train()
    assert replay.told == replay.expected
    assert {p for p, *_ in replay.told} == {"forward", "recompute", "backward"}
    assert len({scale for *_, scale in replay.told}) > 60


def test_what_comes_out_is_cast_with_that_scale() -> None:
    """Warm-up from 1, then the largest of the last three; a scale too small flushes to zero, one too large clips."""
    layer = nn.Linear(16, 16, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.eye(16))
    x = torch.zeros(1, 16)
    amaxes = [1e-4, 2.0, 1e3, 1.0, 1.0, 1.0, 1.0]
    with fp8debug.emulate(layer, f"delayed:amax_history_len={LENGTH}", only="x", quiet=True):
        for i, amax in enumerate(amaxes):
            x[0, 0], x[0, 1] = amax, amax * 2**-10
            y = layer(x)
            y.sum().backward()
            window = amaxes[max(0, i - LENGTH) : i]
            scale = np.float32(448) / np.float32(max(window)) if window else np.float32(1)
            expected = (x * float(scale)).clamp(-448, 448).to(torch.float8_e4m3fn).float() / torch.tensor(scale)
            assert torch.equal(y.detach(), expected), i
    assert amaxes[2] > 448 / (448 / 2.0)  # clipped: the window knew 2 only


def test_evaluation_reads_the_next_scale_and_leaves_no_trace() -> None:
    layer = nn.Linear(4, 4)
    scales = []
    with fp8debug.emulate(layer, "delayed", quiet=True):
        for amax, training in ((7.0, True), (1e6, False), (1e6, False), (1.0, True), (1.0, True)):
            layer.train(training)
            y = layer(torch.full((2, 4), amax))
            forward = emulated_forward(layer)
            assert forward is not None and forward.last_call is not None
            scales.append(float(forward.last_call.scales_in_force("x")[0].scale or 0))
            if training:
                y.sum().backward()
    assert scales == [1.0, 64.0, 64.0, 64.0, 64.0]


@pytest.mark.parametrize("skip", [False, True])
def test_w_advances_once_a_step_even_if_the_scaler_skips_it(skip: bool) -> None:
    layer = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scales = []
    with fp8debug.emulate(layer, "delayed", quiet=True):
        for _ in range(3):
            for _ in range(2):
                loss = layer(torch.ones(2, 4)).sum()
                scaler.scale(loss).backward()
                forward = emulated_forward(layer)
                assert forward is not None and forward.last_call is not None
                scales.append(float(forward.last_call.scales_in_force("w")[0].scale or 0))
            if skip:
                assert layer.weight.grad is not None
                layer.weight.grad[0, 0] = math.inf
            amax = layer.weight.abs().max().item()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert scales[:2] == [1.0, 1.0]
    assert scales[2] == scales[3] != 1.0
    if skip:
        assert scales[2:] == [float(np.float32(448 / amax))] * 4
    else:
        assert scales[4] == scales[5] != scales[2]


@pytest.mark.parametrize("rolls", ["microbatch", "step"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["checkpoint", "reentrant"])
def test_a_capture_sees_the_scales_in_force(reentrant: bool, rolls: str, attach: Attach, recorded: Recorded) -> None:
    """What the layers say they cast with is what is recorded, and what the amaxes that were recorded lead to."""
    torch.manual_seed(3)
    model = Model(reentrant)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    told: list[tuple[Any, ...]] = []

    def listen(layer: str, module: nn.Module, y: Tensor) -> None:
        forward = emulated_forward(module)
        assert forward is not None and forward.last_call is not None
        call = forward.last_call
        step, microbatch, number, pass_ = call.moment

        def tell(tensor: str, at: str) -> None:
            (s,) = call.scales_in_force(tensor)
            state = (s.scale, s.scale_inv, s.amax_used, s.history_zeros, s.n_rolls, s.set_at_step, s.status)
            told.append((step, microbatch, number, at, layer, tensor, s.fmt.name, *state))

        tell("x", pass_)
        if pass_ == "forward":
            tell("w", pass_)
        if y.requires_grad:
            y.register_hook(lambda gradient: tell("dy", "backward"))

    with attach(model, recipes=RECIPE, emulate=RECIPE, rolls=rolls):
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(lambda m, args, y, n=name: listen(n, m, y))
        for microbatch, size in enumerate(SIZES):
            model((torch.randn(5, 16) * size).requires_grad_()).square().mean().backward()
            if microbatch % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    where = ("step", "microbatch", "call", "pass", "layer", "tensor", "fmt")
    key = (*where, "scale", "scale_inv", "amax_used", "history_zeros", "n_rolls", "set_at_step", "status")
    rows = recorded.rows("scales", alternate=False)
    assert {row["source"] for row in rows} == {"framework"}
    in_force = {tuple(row[name] for name in key) for row in rows}
    assert in_force <= set(told)
    assert {t for t in told if t[5] != "w"} == {s for s in in_force if s[5] != "w"}
    assert len(in_force) > 100 and {s[3] for s in in_force} == {"forward", "recompute", "backward"}
    assert {layer["emulated"] for layer in recorded.manifest["layers"]} == {RECIPE}
    assert replayed(recorded, rolls) == {(row["seq"], row["scale"]) for row in rows}


def replayed(recorded: Recorded, rolls: str) -> set[tuple[int, float]]:
    """The scale of each record, from the recorded amaxes alone."""
    simulator = ScaleSimulator([parse_recipe(RECIPE)], rolls)
    found = set()
    for row in recorded.rows("tensors"):
        moment = Moment(row["step"], row["microbatch"], row["call"], row["pass"])
        scale = simulator.observe(row["layer"], row["tensor"], moment, row["amax"])[0].scale
        assert scale is not None
        found.add((row["seq"], float(scale)))
    return found
