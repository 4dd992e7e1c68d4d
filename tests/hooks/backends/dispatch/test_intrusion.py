"""The mode is a guest: nothing changes, nothing stays, and modes of the script stay in order."""

from __future__ import annotations

import copy
import gc
import io
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

AUTOGRAD: Any = torch.autograd
ALL = ["x", "w", "dy", "y", "dx", "dw", "key", "value"]


class Net(nn.Module):
    """Functional layers, experts, attention, dropout, and a checkpoint."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.embed, self.known = nn.Parameter(torch.randn(8, 5)), nn.Linear(8, 8)
        self.experts = nn.Parameter(torch.randn(2, 8, 8) / 3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.extra = nn.Parameter(torch.randn(3, 4))

    def body(self, h: Tensor) -> Tensor:
        h = self.known(h).relu_()
        h = h + torch.bmm(h, self.experts) + self.attention(h, h, h, need_weights=False)[0]
        return functional.dropout(h, 0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.linear(x, self.embed)
        if self.reentrant is None:
            return self.body(h)
        return checkpoint(self.body, h, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


def train(start: Callable[[nn.Module], AbstractContextManager[object]], reentrant: bool | None) -> bytes:
    torch.manual_seed(7)
    model = Net(reentrant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    with start(model):
        for step in range(2):
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=step == 1):
                    loss = model(torch.randn(2, 4, 5)).float().square().mean()
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
    buffer = io.BytesIO()
    gradients = [p.grad for p in model.parameters()]
    torch.save([losses, model.state_dict(), gradients, optimizer.state_dict(), torch.get_rng_state()], buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("backend", ["auto", "dispatch"])
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["plain", "checkpoint", "reentrant"])
def test_bit_equal(reentrant: bool | None, backend: str, attach: Attach, recorded: Recorded) -> None:
    bare = train(lambda model: nullcontext(), reentrant)
    options: dict[str, Any] = {"tensors": ALL, "raw_every": 1, "recipes": ["current", "delayed", "mxfp8"]}
    assert train(lambda model: attach(model, attention=True, backend=backend, **options), reentrant) == bare
    assert recorded.manifest["status"] == "closed"
    assert {row["tensor"] for row in recorded.rows("tensors")} == set(ALL)
    # The kernel that nn.MultiheadAttention falls back to computes in FP32 whatever it is given: told, and true.
    events = {(r["kind"], r["layer"]) for r in recorded.rows("events")}
    assert events <= {("precision_differs", f"attention.{gemm}") for gemm in ("qk", "pv")}


def test_modes_of_the_script_count_the_same(attach: Attach, recorded: Recorded, operation_log: Any) -> None:
    """Around the model, inside it, and entered in one hook and left in another."""

    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with operation_log() as self.log:
                return x.tanh()

    def run(watch: Callable[[nn.Module], AbstractContextManager[object]]) -> tuple[Any, ...]:
        torch.manual_seed(0)
        net, inner, between = Net().eval(), Inner(), operation_log()
        model = nn.Sequential(net, inner).train()
        with watch(model):
            model.register_forward_pre_hook(lambda *_: between.__enter__() and None)
            model.register_forward_hook(lambda *_: between.__exit__(None, None, None))
            with FlopCounterMode(display=False) as flops, operation_log() as log:
                model(torch.ones(2, 4, 5)).sum().backward()
        assert _get_current_dispatch_mode_stack() == []
        return flops.get_total_flops(), log.seen, between.seen, inner.log.seen

    bare = run(lambda model: nullcontext())
    assert run(lambda model: attach(model, backend="dispatch", attention=True, tensors=ALL)) == bare
    assert recorded.manifest["status"] == "closed"
    assert recorded.rows("tensors", layer="0.embed", tensor="dy")


def test_nothing_stays(attach: Attach) -> None:
    def hooks(model: nn.Module) -> list[Any]:
        return [dict(t) for m in model.modules() for n, t in sorted(vars(m).items()) if "_hooks" in n]

    model, engine = Net(), AUTOGRAD._engine_run_backward
    before = hooks(model)
    session = attach(model, backend="dispatch", attention=True)
    assert hooks(model) != before
    assert AUTOGRAD._engine_run_backward is not engine
    loss = model(torch.ones(2, 4, 5)).sum()
    twin = copy.deepcopy(model)
    torch.save(model, buffer := io.BytesIO())
    assert b"fp8debug" not in buffer.getvalue()
    twin(torch.ones(2, 4, 5))
    session.close()
    loss.backward()
    assert hooks(model) == before
    assert AUTOGRAD._engine_run_backward is engine
    assert _get_current_dispatch_mode_stack() == []


def test_closed_inside_a_forward_and_by_an_exception(attach: Attach, recorded: Recorded) -> None:
    class Closing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3, 3))
            self.raises = True

        def forward(self, x: Tensor) -> Tensor:
            y = x @ self.w
            if self.raises:
                self.raises = False
                raise ValueError("a bad batch")
            session.close()
            return y @ self.w

    model = Closing()
    session = attach(model)
    with pytest.raises(ValueError, match="a bad batch"):
        model(torch.ones(2, 3))
    assert _get_current_dispatch_mode_stack() == []
    model(torch.ones(2, 3)).sum().backward()
    assert _get_current_dispatch_mode_stack() == []
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    assert len(recorded.rows("tensors", tensor="x")) == 2


def test_an_error_of_ours_ends_the_capture_alone(
    attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fp8debug.hooks.backends.dispatch.reporting import Reporter

    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Reporter, "forward", broken)
    model = Net()
    with attach(model):
        model(torch.ones(2, 4, 5)).sum().backward()
    assert recorded.manifest["status"] == "disabled"
    assert model.embed.grad is not None
    assert _get_current_dispatch_mode_stack() == []


def test_no_tensor_is_kept_alive(attach: Attach) -> None:
    alive: list[weakref.ref[torch.UntypedStorage]] = []

    class Keeping(Net):
        def body(self, h: Tensor) -> Tensor:
            alive.append(weakref.ref(h.untyped_storage()))
            y = super().body(h)
            alive.append(weakref.ref(y.untyped_storage()))
            return y

    gc.disable()
    try:
        model = Keeping()
        with attach(model, backend="dispatch", attention=True, tensors=ALL, detail=()):
            model(torch.randn(2, 4, 5)).sum().backward()
            assert [ref() for ref in alive] == [None, None]
    finally:
        gc.enable()


def test_known_modules_alone_never_enter_a_mode(attach: Attach) -> None:
    depths: list[int] = []
    model = nn.Sequential(nn.Embedding(4, 4), nn.LayerNorm(4), nn.Linear(4, 4))
    model[2].register_forward_hook(lambda *_: depths.append(len(_get_current_dispatch_mode_stack())))
    engine = AUTOGRAD._engine_run_backward
    with attach(model):
        assert AUTOGRAD._engine_run_backward is engine
        model(torch.arange(4)).sum().backward()
    assert depths == [0]


def test_gradients_of_gradients_and_transforms(attach: Attach, recorded: Recorded) -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.w).tanh().square().sum()

    def run(model: Small, x: Tensor) -> list[Tensor]:
        (gradient,) = torch.autograd.grad(model(x), x, create_graph=True)
        gradient.square().sum().backward()

        def loss(w: Tensor, row: Tensor) -> Tensor:
            return torch.func.functional_call(model, {"w": w}, (row[None],))  # type: ignore[no-any-return]

        per_row = torch.func.vmap(torch.func.grad(loss), (None, 0))
        assert model.w.grad is not None
        return [gradient.detach(), model.w.grad, per_row(model.w.detach(), x.detach())]

    torch.manual_seed(0)
    model = Small()
    twin, x = copy.deepcopy(model), torch.randn(2, 3, requires_grad=True)
    bare = run(twin, x)
    with attach(model):
        watched = run(model, x)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert recorded.manifest["status"] == "closed"
    passes = [r["pass"] for r in recorded.rows("tensors", layer="w", microbatch=0) if r["tensor"] in ("x", "dy")]
    assert passes[:2] == ["forward", "backward"]
    assert "recompute" not in passes


def test_gemms_outside_autograd_are_said(attach: Attach, recorded: Recorded) -> None:
    """As a compiler's graph computes them: into buffers of its own."""

    class Buffered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(3, 4))

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return torch.mm(x, self.w, out=torch.empty(2, 4))

    model = Buffered()
    with attach(model) as session:
        for _ in range(2):
            model(torch.ones(2, 3))
    assert session.close().problems == []
    (event,) = recorded.rows("events")
    assert (event["kind"], event["layer"]) == ("not_captured", "w")


@pytest.mark.filterwarnings("ignore")  # dynamo's own
def test_compiled_parts_stay_compiled(attach: Attach, recorded: Recorded) -> None:
    """The mode around a compiled module does not make it run without its graph."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))
            self.inner = Raw()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x @ self.w)  # type: ignore[no-any-return]

    class Raw(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.v)

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    model = Outer()
    model.inner.compile(backend=backend)
    with attach(model) as session:
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
    assert len(graphs) == 1
    assert {r["layer"] for r in recorded.rows("tensors")} >= {"w"}
    assert session.close() is not None
