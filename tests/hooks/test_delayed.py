"""The simulated delayed scale of every pass equals a replay of Transformer Engine's fused update kernel.

The replay keeps the history as the kernel does, an array that is shifted, and is fed by hooks of the test's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fp8debug.recipes import parse_recipe
from fp8debug.replay import Moment, ScaleSimulator

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

FP8_MAX = {"E4M3": 448.0, "E5M2": 57344.0}
FLT_MAX = np.finfo(np.float32).max


@dataclass
class Kernel:
    """`amax_and_scale_update` of one tensor, in the order of its operations (numpy float32)."""

    length: int
    algo: str
    scaled_max: np.float32
    scale: np.float32 = field(default_factory=lambda: np.float32(1.0))
    history: list[np.float32] = field(default_factory=list)
    n_rolls: int = 0
    set_at_step: int | None = None
    amax_used: float | None = None

    def __post_init__(self) -> None:
        self.history = [np.float32(0)] * self.length

    def see(self, amax: float) -> None:
        self.history[0] = np.fmax(self.history[0], np.float32(amax))

    def update(self, step: int) -> None:
        last, amax = self.history[0], np.float32(0)
        if last != 0:
            self.n_rolls += 1
            shifted = [*self.history[1:], last]
            for value in shifted:
                amax = np.fmax(amax, value)
            self.history = [np.float32(0), *shifted[1:]]
        if self.algo == "most_recent":
            amax = last
        if np.isfinite(amax) and amax > 0:
            with np.errstate(over="ignore"):
                self.scale = min(self.scaled_max / amax, FLT_MAX)
            self.set_at_step, self.amax_used = step, float(amax)

    @property
    def zeros(self) -> int:
        return self.length - min(self.n_rolls, self.length)


@dataclass(frozen=True)
class Recipe:
    text: str
    length: int
    algo: str = "max"
    margin: int = 0
    fmt: str | None = None

    def formats(self, tensor: str) -> list[tuple[str, bool]]:
        """Element formats, each with whether it is the alternate."""
        if self.fmt:
            return [(self.fmt, False)]
        return [("E5M2", False), ("E4M3", True)] if tensor == "dy" else [("E4M3", False)]


RECIPES = (
    Recipe("delayed:amax_history_len=3", 3),
    Recipe("delayed:amax_history_len=3,amax_compute_algo=most_recent", 3, algo="most_recent"),
    Recipe("delayed:amax_history_len=1,margin=2", 1, margin=2),
    Recipe("delayed:amax_history_len=4,margin=-1,fp8_format=E4M3", 4, margin=-1, fmt="E4M3"),
    Recipe("delayed", 1024),
)


class Replay:
    """What the test's hooks see, and the scales that were in force when they saw it."""

    def __init__(self) -> None:
        self.phase = ("forward", 0, 0)
        self.expected: list[dict[str, Any]] = []
        self._kernels: dict[tuple[str, str, str, str], Kernel] = {}
        self._weights: set[tuple[str, int]] = set()
        self._evaluated: set[tuple[str, int]] = set()

    def watch(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(lambda m, args, y, n=name: self._forward(n, m, args[0], y))

    def update(self, step: int) -> None:
        for kernel in self._kernels.values():
            kernel.update(step)

    def _forward(self, layer: str, module: nn.Linear, x: Tensor, y: Tensor) -> None:
        phase, step, _ = self.phase
        if phase == "eval":
            if (layer, step) not in self._evaluated:
                self._evaluated.add((layer, step))
                self._see(layer, "x", x, "eval")
            return
        pass_ = "recompute" if phase == "backward" else "forward"
        self._see(layer, "x", x, pass_)
        if pass_ == "forward" and (layer, step) not in self._weights:
            self._weights.add((layer, step))
            self._see(layer, "w", module.weight, "forward")
        y.register_hook(lambda gradient: self._see(layer, "dy", gradient, "backward"))

    def _see(self, layer: str, tensor: str, value: Tensor, pass_: str) -> None:
        numbers = value.detach().abs().flatten().tolist()
        amax = max((n for n in numbers if not math.isnan(n)), default=0.0)
        for recipe in RECIPES:
            for fmt, alternate in recipe.formats(tensor):
                kernel = self._kernels.setdefault(
                    (recipe.text, fmt, layer, tensor),
                    Kernel(recipe.length, recipe.algo, np.float32(FP8_MAX[fmt] * 2.0**-recipe.margin)),
                )
                self.expected.append(
                    {
                        "pass": pass_,
                        "layer": layer,
                        "tensor": tensor,
                        "recipe": recipe.text,
                        "fmt": fmt,
                        "alternate": alternate,
                        "source": "simulated",
                        "scope": "rank",
                        "scale": float(kernel.scale),
                        "scale_inv": float(np.float32(1) / kernel.scale),
                        "amax_used": kernel.amax_used,
                        "history_len": recipe.length,
                        "history_zeros": kernel.zeros,
                        "n_rolls": kernel.n_rolls,
                        "ran": None,
                        "set_at_step": kernel.set_at_step,
                        "status": "ok" if kernel.n_rolls else "warmup",
                    }
                )
                if pass_ in ("forward", "backward"):
                    kernel.see(amax)


class Model(nn.Module):
    """A layer used twice in each pass, a block that is recomputed, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(4, 4)
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(self.twice(x) * 3)
        y: Tensor = self.head(checkpoint(self.block, h, use_reentrant=False))
        return y


@pytest.mark.parametrize("rolls", ["microbatch", "step"])
def test_scales_of_every_pass_equal_the_kernel(rolls: str, attach: Attach, recorded: Recorded) -> None:
    torch.manual_seed(3)
    model, replay = Model(), Replay()
    replay.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    # Sizes of the inputs: a rise and a fall longer than the windows, nothing at all, an infinity.
    sizes = [1, 0.5, 64, 2, 1, 0.25, 1e-3, 0, 3, 1, math.inf, 1, 2, 0.5, 1, 1, 1e-12, 4]
    with attach(model, recipes=[r.text for r in RECIPES], rolls=rolls, every=2):
        for microbatch, size in enumerate(sizes):
            step, part = divmod(microbatch, 2)
            x = torch.randn(5, 4)
            x = x * size if size < math.inf else x.index_fill(1, torch.tensor(2), size)
            replay.phase = ("forward", step, part)
            loss = model(x).square().mean()
            replay.phase = ("backward", step, part)
            loss.backward()
            if rolls == "microbatch" or part == 1:
                replay.update(step)
            if part == 1:
                if math.inf in sizes[2 * step : 2 * step + 2]:
                    optimizer.zero_grad()  # or all weights are NaN from here on
                optimizer.step()
                optimizer.zero_grad()
            if part == 1 and step % 2 == 0:  # evaluation is recorded in sampled steps alone
                replay.phase = ("eval", step, part)
                model.eval()
                for _ in range(2):
                    model(torch.full((1, 4), 1e4))
                model.train()
    rows = recorded.rows("scales")
    got = [{name: row[name] for name in replay.expected[0]} for row in rows]
    assert len(got) == len(replay.expected)
    for number, (mine, reference) in enumerate(zip(got, replay.expected, strict=True)):
        assert mine == reference, f"row {number} of {len(got)}: {rows[number]}"
    assert {r["pass"] for r in got} == {"forward", "backward", "recompute", "eval"}
    assert len({r["scale"] for r in got}) > 300
    assert max(r["n_rolls"] for r in got) == (len(sizes) if rolls == "microbatch" else len(sizes) // 2)


@pytest.mark.parametrize("pass_", ["recompute", "eval"])
def test_what_is_not_training_enters_no_history(pass_: str) -> None:
    """Even where it sees more than the training passes did, as a recomputation with other random numbers may."""
    simulator = ScaleSimulator([parse_recipe("delayed")], "microbatch")
    for microbatch in range(2):
        simulator.observe("fc", "x", Moment(0, microbatch, 0, "forward"), 7.0)
        simulator.observe("fc", "x", Moment(0, microbatch, 0, pass_), 1e6)
    (scale,) = simulator.observe("fc", "x", Moment(1, 0, 0, "forward"), 1.0)
    assert scale.scale == np.float32(448 / 7.0)
    assert (scale.n_rolls, scale.amax_used) == (2, 7.0)


def test_an_amax_that_was_not_measured_leaves_the_scale_unknown() -> None:
    simulator = ScaleSimulator([parse_recipe("delayed")], "microbatch")
    seen = [
        simulator.observe("fc", "x", Moment(step, 0, 0, "forward"), amax)[0]
        for step, amax in enumerate((7.0, None, 1.0, 1.0))
    ]
    assert [(s.status, s.scale) for s in seen] == [
        *(("warmup", 1.0), ("ok", 448 / 7.0)),
        *(("history_incomplete", None), ("history_incomplete", None)),
    ]
    assert [s.scale_inv is None for s in seen] == [False, False, True, True]


def test_only_the_sampled_steps_have_errors_but_every_pass_has_a_scale(attach: Attach, recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, every=3, first=2):
        for _ in range(7):
            model(torch.randn(4, 3)).square().sum().backward()
            optimizer.step()
    assert {r["step"] for r in recorded.rows("errors")} == {0, 1, 3, 6}
    assert [r["step"] for r in recorded.rows("steps", sampled=True)] == [0, 1, 3, 6]
    assert {r["step"] for r in recorded.rows("tensors", sampled=True)} == {0, 1, 3, 6}
    assert {(r["step"], r["tensor"]) for r in recorded.rows("scales")} == {
        (s, t) for s in range(7) for t in ("x", "w", "dy")
    }
    # The scale that the sums belong to is the one in force, or the tensor's own.
    in_force = {(r["seq"], r["recipe"], r["fmt"]): r["scale"] for r in recorded.rows("scales")}
    amax = {r["seq"]: r["amax"] for r in recorded.rows("tensors")}
    for row in recorded.rows("errors"):
        current = np.float32(FP8_MAX[row["fmt"]]) / np.float32(amax[row["seq"]])
        expected = current if row["recipe"] == "current" else in_force[row["seq"], row["recipe"], row["fmt"]]
        assert row["scale"] == pytest.approx(expected, rel=1e-7)
        assert row["scale_scope"] == ("record" if row["recipe"] == "current" else "rank")
        assert row["alternate"] == (row["tensor"] == "dy" and row["fmt"] == "E4M3")
