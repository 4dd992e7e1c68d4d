"""A training with capture is, bit for bit, the training without; and nothing of ours stays behind."""

from __future__ import annotations

import copy
import gc
import io
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import optimizer as torch_optimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from fp8debug.hooks.session import Session
    from tests.hooks.conftest import Attach, Recorded

ALL = ("x", "w", "dy", "y", "dx", "dw")
RECIPES = ["current", "delayed", "bf16", "coat", "mxfp8", "block", "nvfp4:stochastic_rounding=true"]


class Model(nn.Module):
    """Branches whose gradients are added, dropout, an in-place activation, a weight that is shared."""

    def __init__(self, recompute: bool | None) -> None:
        super().__init__()
        self.recompute = recompute
        self.embed = nn.Linear(5, 8)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(16, 8))
        self.out = nn.Linear(8, 8, bias=False)
        self.out.weight = self.q.weight

    def body(self, h: Tensor) -> Tensor:
        h = h + (self.q(h) @ self.k(h).transpose(1, 2)).softmax(2) @ self.v(h)
        y: Tensor = h + self.mlp(h)
        return y

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if self.recompute is not None:
            h = checkpoint(self.body, h, use_reentrant=self.recompute)
        y: Tensor = self.out(self.body(h))
        return y


def train(start: Callable[[nn.Module], AbstractContextManager[object]], recompute: bool | None, autocast: bool) -> Any:
    """Everything that a training leaves: losses, weights, gradients, optimizer and random states."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(7)
    model = Model(recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    with start(model):
        for _ in range(3):
            for _ in range(2):
                x = torch.randn(3, 4, 5) * random.random() + np.random.rand()  # the global state is meant
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = model(x).float().square().mean() / 2
                loss.backward()
                losses.append(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if len(losses) < 6:
                optimizer.zero_grad()
    gradients = [p.grad for p in model.parameters()]
    kept = [
        losses,
        model.state_dict(),
        gradients,
        optimizer.state_dict(),
        torch.get_rng_state(),
        torch.get_num_threads(),
    ]
    buffer = io.BytesIO()
    torch.save(kept, buffer)
    return buffer.getvalue(), random.getstate(), np.random.get_state(legacy=False)["state"]["key"].tolist()


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("recompute", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
def test_bit_equal(recompute: bool | None, autocast: bool, attach: Attach, recorded: Recorded) -> None:
    sessions: list[Session] = []

    def start(model: nn.Module) -> Session:
        accumulation = ["exact", "hopper-promoted"]
        sessions.append(
            attach(model, tensors=ALL, raw_every=1, recipes=RECIPES, accumulation=accumulation, engine=None)
        )
        return sessions[-1]

    bare = train(lambda model: nullcontext(), recompute, autocast)
    assert train(start, recompute, autocast) == bare
    assert recorded.manifest["status"] == "closed"
    assert {row["tensor"] for row in recorded.rows("tensors")} == set(ALL)
    assert len(recorded.rows("steps")) == 3
    assert all(recorded.rows(table) for table in ("blocks", "channels", "gemms")), "all details were taken"
    probed = {(row["gemm"], row["recipe"]) for row in recorded.rows("gemms")}
    assert probed == {(gemm, recipe) for gemm in ("fprop", "dgrad", "wgrad") for recipe in RECIPES}


@pytest.fixture
def entry_points() -> Iterator[Callable[[], list[object]]]:
    """What of torch we wrap or register with."""

    def current() -> list[object]:
        return [
            torch.autograd.backward,
            *(getattr(torch.amp.GradScaler, name) for name in ("scale", "step")),
            *(getattr(torch.nn.utils, name) for name in ("clip_grad_norm_", "clip_grads_with_norm_")),
            *(getattr(torch.nn.utils.clip_grad, name) for name in ("clip_grad_norm_", "_clip_grads_with_norm_")),
            list(torch_optimizer._global_optimizer_pre_hooks.values()),
            list(torch_optimizer._global_optimizer_post_hooks.values()),
            list(torch.nn.modules.module._global_forward_pre_hooks.values()),
        ]

    yield current


def hooks_of(model: nn.Module) -> list[dict[Any, Any]]:
    """Every hook table of every module."""
    return [
        dict(table)
        for module in model.modules()
        for name, table in sorted(vars(module).items())
        if name.endswith("_hooks") or "_hooks_with_" in name or "_hooks_always_" in name
    ]


def test_nothing_stays_behind(attach: Attach, entry_points: Callable[[], list[object]]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    seen: list[str] = []
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[0].register_forward_pre_hook(lambda *_: seen.append("pre"))
    before, hooks = entry_points(), hooks_of(model)
    session = attach(model, tensors=ALL)
    assert entry_points() != before
    assert hooks_of(model) != hooks
    model(torch.ones(2, 3)).sum().backward()
    session.close()
    assert entry_points() == before
    assert hooks_of(model) == hooks
    assert [p._backward_hooks for p in model.parameters()] in ([None] * 4, [{}, None, {}, None])
    model(torch.ones(2, 3))
    assert seen == ["pre", "forward"] * 2


def test_wrappers_of_others_are_left_in_place(attach: Attach, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody wraps what we had wrapped: our part in the middle goes to sleep."""
    original = torch.autograd.backward
    model = nn.Sequential(nn.Linear(3, 3))
    session = attach(model)
    ours = torch.autograd.backward
    assert ours is not original
    theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    monkeypatch.setattr(torch.autograd, "backward", theirs)
    session.close()
    assert torch.autograd.backward is theirs
    model(torch.ones(2, 3)).sum().backward()
    assert model[0].weight.grad is not None
    assert session.watch.report.losses == []
    monkeypatch.undo()
    torch.autograd.backward = original


def test_no_tensor_is_kept_alive(attach: Attach) -> None:
    """With every tensor dumped raw, activations and gradients die when the training drops them."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    alive: list[weakref.ref[torch.UntypedStorage]] = []

    def watch(tensor: Tensor) -> None:
        alive.append(weakref.ref(tensor.untyped_storage()))

    def note(module: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
        watch(args[0])
        watch(y)
        y.register_hook(watch)

    for layer in (model[0], model[2]):
        layer.register_forward_hook(note)
    gc.disable()
    try:
        with attach(model, tensors=ALL, raw_every=1):
            model(torch.randn(3, 4, requires_grad=True)).sum().backward()
            assert len(alive) == 6
            assert [ref() for ref in alive] == [None] * 6
    finally:
        gc.enable()


def test_copies_and_pickles_work_and_report_nothing(attach: Attach, recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    x = torch.randn(4, 3, requires_grad=True)
    buffer = io.BytesIO()
    with attach(model, tensors=ALL):
        y = model(x)
        expected = torch.autograd.grad(y.sum(), list(model.parameters()), retain_graph=True)
        twin = copy.deepcopy(model)
        torch.save(model, buffer)
        torch.save(y, io.BytesIO())
        n_before = len(recorded.keys()) if recorded.parts("tensors") else 0
        loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
        for other in (twin, loaded):
            assert torch.equal(other(x), y)
            other(x).sum().backward()
            gradients = [p.grad for p in other.parameters() if p.grad is not None]
            assert all(torch.equal(got, wanted) for got, wanted in zip(gradients, expected, strict=True))
    assert n_before == 0
    assert b"fp8debug" not in buffer.getvalue(), "a checkpoint must open where we are not installed"
    forwards = [f"0/0/0 forward {layer}.{tensor}" for layer in "01" for tensor in "xwy"]
    backwards = [f"0/0/0 backward {tensor}" for tensor in ("1.dy", "1.dw", "1.dx", "0.dy", "0.dw")]
    assert sorted(recorded.keys()) == sorted(forwards + backwards), "the copies have added nothing"


def test_function_transforms(attach: Attach, recorded: Recorded) -> None:
    """torch.func wraps tensors in its own; what they hold is recorded, and the result is what it was."""
    model = nn.Sequential(nn.Linear(3, 2))
    x = torch.randn(5, 3)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(given: dict[str, Tensor], row: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(model, given, (row,)).square().sum()
        return y

    per_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    bare = per_row(parameters, x)
    with attach(model):
        watched = per_row(parameters, x)
    assert all(torch.equal(bare[name], watched[name]) for name in bare)
    rows = {row["tensor"]: row for row in recorded.rows("tensors")}
    dy = 2 * model(x).detach()
    for tensor, value in (("x", x), ("w", parameters["0.weight"]), ("dy", dy)):
        assert rows[tensor]["shape"] == list(value.shape)
        assert rows[tensor]["amax"] == pytest.approx(float(value.abs().max()), rel=1e-6)


def test_modes_of_the_script_see_nothing_of_ours(attach: Attach, recorded: Recorded, operation_log: Any) -> None:
    def train(watch: Callable[[nn.Module], AbstractContextManager[object]]) -> tuple[int, list[str]]:
        model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 8))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with watch(model), FlopCounterMode(display=False) as flops, operation_log() as log:
            model(torch.ones(4, 16)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return flops.get_total_flops(), log.seen

    bare = train(lambda model: nullcontext())
    assert train(lambda model: attach(model, recipes=["current", "mxfp8"])) == bare
    assert {row["gemm"] for row in recorded.rows("gemms")} == {"fprop", "dgrad", "wgrad"}


@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_a_dry_run_is_no_training(kind: str, attach: Attach, recorded: Recorded) -> None:
    """Shapes without numbers, before the training begins: nothing to record, and no part of a step."""
    model, x = nn.Sequential(nn.Linear(4, 3)), torch.ones(2, 4)
    mode: Any = torch.device("meta") if kind == "meta" else FakeTensorMode()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model):
        with mode:
            shapes = {name: torch.empty(p.shape, requires_grad=True) for name, p in model.named_parameters()}
            torch.func.functional_call(model, shapes, (torch.empty(2, 4),)).sum().backward()
            torch.nn.utils.clip_grad_norm_(shapes.values(), 1.0)
            torch.optim.SGD(shapes.values(), lr=0.1).step()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
    assert recorded.manifest["status"] == "closed"
    assert recorded.keys() == ["0/0/0 forward 0.x", "0/0/0 forward 0.w", "0/0/0 backward 0.dy"]
    step = recorded.row("steps")
    assert (step["losses"], step["n_microbatches"]) == ([loss.item()], 1)


@pytest.mark.parametrize("engine", ["torch", "numba"])
def test_defaults_that_the_script_has_set(engine: str, attach: Attach, recorded: Recorded) -> None:
    """Another device or dtype for what is made without saying which; ours must not end up there."""
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    with attach(model, engine=engine, raw_every=1):
        try:
            torch.set_default_device("meta")
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            for factor in (1.0, float("nan")):
                model(x * factor).sum().backward()
        finally:
            torch.set_default_device(None)
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
    assert recorded.manifest["status"] == "closed"
    assert [row["status"] for row in recorded.rows("tensors")] == ["ok"] * 5
    assert recorded.rows("tensors", tensor="x")[0]["amax"] == float(x.abs().max())
