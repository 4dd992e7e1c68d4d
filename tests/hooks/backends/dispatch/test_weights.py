"""GEMMs of weights that no module hook reaches: each is named, and follows from its operands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from tests.hooks.backends.dispatch.conftest import Values
    from tests.hooks.conftest import Attach, Recorded

ALL = ("x", "w", "dy", "y", "dx", "dw")
RAW: dict[str, Any] = {"tensors": ALL, "raw_every": 1, "every": 1000, "recipes": ["current"]}


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape) / shape[-1] ** 0.5)


class Functional(nn.Module):
    """Raw weights in every spelling, beside a module of a known kind; `square` is used twice, `column` is (K, N)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bias = weight(6, 4), nn.Parameter(torch.zeros(6))
        self.square = weight(6, 6)
        self.column = weight(6, 6)
        self.known = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.einsum = weight(5, 6)
        self.position = nn.Parameter(torch.zeros(9, 4))

    def body(self, h: Tensor) -> Tensor:
        h = functional.linear(h, self.square).tanh()
        h = functional.linear(h, self.square) @ self.column
        return self.known(self.norm(h)).relu()  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.position[: x.shape[1]]
        h = functional.linear(x, self.first, self.bias)
        return torch.einsum("btk,nk->btn", self.body(h), self.einsum)


def test_functional_layers(
    attach: Attach,
    recorded: Recorded,
    values: Callable[[], Values],
    products: Callable[..., set[str]],
    weight_gradients: Callable[..., None],
) -> None:
    torch.manual_seed(0)
    model = Functional()
    x = torch.randn(2, 7, 4, requires_grad=True)
    with attach(model, **RAW) as session:
        for _ in range(2):
            (model(x).square().mean() / 2).backward()
    by_hand = "no optimizer stepped, so 2 micro-batches count as one step: call session.step() after each step"
    got = values()
    assert products(got) == {"first", "square", "column", "known", "einsum"}
    named = {n: p.grad.double().numpy() for n, p in model.named_parameters() if p.grad is not None}
    named |= {"known": named["known.weight"], "column": named["column"].T}
    weight_gradients(got, {n: named[n] for n in ("first", "square", "column", "known", "einsum")})
    # One record of everything for each use, w once a step; the table and the norm are in no GEMM, and not missed.
    calls = {"first": 1, "square": 2, "column": 1, "known": 1, "einsum": 1}
    uses = [(m, c, n) for m in range(2) for n, k in calls.items() for c in range(k)]
    per_use = {(0, m, c, n, t) for m, c, n in uses for t in ("x", "dy", "y", "dx")}
    per_use |= {(0, m, c, n, "dw") for m, c, n in uses} | {(0, 0, 0, n, "w") for _, _, n in uses}
    assert got.keys() == per_use
    assert session.close().problems == [by_hand]
    layers = {layer["name"]: (layer["backend"], layer["kind"]) for layer in recorded.manifest["layers"]}
    assert layers == {
        **dict.fromkeys(("first", "square", "column", "einsum", "position"), ("dispatch", "parameter")),
        "known": ("modules", "Linear"),
    }


@pytest.mark.parametrize("backend", ["auto", "dispatch"])
@pytest.mark.parametrize("kind", ["plain", "autocast", "checkpoint", "reentrant"])
def test_ways_to_run(kind: str, backend: str, attach: Attach, recorded: Recorded, values: Callable[[], Values]) -> None:
    torch.manual_seed(0)
    model = Functional()
    inner = model.body
    if kind in ("checkpoint", "reentrant"):
        model.body = lambda h: checkpoint(inner, h, use_reentrant=kind == "reentrant")  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with attach(model, **RAW | {"tensors": ("x", "w", "dy"), "backend": backend}):
        with torch.autocast("cpu", torch.bfloat16) if kind == "autocast" else nullcontext():
            loss = model(torch.randn(2, 7, 4)).float().square().mean()
        loss.backward()
        gradients = {n: p.grad.double().numpy() for n, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        model(torch.randn(2, 7, 4)).sum().backward()
    got = {key: value for key, value in values().items() if key[0] == 0}
    low = kind == "autocast"
    gradients |= {"known": gradients["known.weight"], "column": gradients["column"].T}
    for name in ("first", "square", "column", "known", "einsum"):
        uses = [key for key in got if key[3:] == (name, "dy")]
        assert len(uses) == (2 if name == "square" else 1)
        read = [
            [
                torch.tensor(got[*key[:4], t]).bfloat16().double().numpy() if low else got[*key[:4], t]
                for t in ("dy", "x")
            ]
            for key in uses
        ]
        gradient = gradients[name]
        total = np.asarray(sum(dy.T @ x for dy, x in read))
        slack = (2**-7 if low else 1e-5) * sum(abs(dy).T @ abs(x) for dy, x in read) + 1e-9
        assert (abs(total - gradient) <= slack).all(), name
    rows = recorded.rows("tensors", step=0)
    by_dispatch = {"first", "square", "column", "einsum"} | ({"known"} if backend == "dispatch" else set())
    assert {r["gemm_dtype"] for r in rows} == {"bfloat16" if low else "float32"}
    assert {r["precision_asked"] for r in rows if r["layer"] in by_dispatch} == {"bfloat16" if low else "float32"}
    recomputed = [r["layer"] for r in rows if r["pass"] == "recompute" and r["tensor"] == "x"]
    again = {
        "checkpoint": ["column", "known", "square", "square"],
        "reentrant": ["column", "known", "square", "square"],
    }.get(kind, [])
    assert sorted(recomputed) in (again, [name for name in again if name != "known"]), (
        "checkpointing stops as soon as it has what it needs"
    )
    assert [r["step"] for r in recorded.rows("steps")] == [0, 1]


def test_only_one_of_the_backward_gemms(attach: Attach, values: Callable[[], Values]) -> None:
    """A frozen weight has no wgrad, an input without gradient no dgrad: dy is there, once, either way."""
    torch.manual_seed(0)
    first, frozen = weight(4, 4), weight(4, 4).requires_grad_(False)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.frozen = first, frozen

        def forward(self, x: Tensor) -> Tensor:
            self.h = x @ self.first
            self.y = self.h @ self.frozen.t()
            return self.y

    model, x = Net(), torch.randn(4, 4)
    with attach(model, **RAW):
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        dy = 2 * model.y.detach().double().numpy()
    got = values()
    np.testing.assert_allclose(got[0, 0, 0, "frozen", "dy"], dy, rtol=1e-6)
    dy_first = dy @ frozen.double().numpy()
    np.testing.assert_allclose(got[0, 0, 0, "first", "dy"], dy_first, rtol=1e-4, atol=1e-6)
    assert first.grad is not None
    np.testing.assert_allclose(got[0, 0, 0, "first", "dw"], first.grad.double().numpy().T, rtol=1e-6)
    assert {key[3:] for key in got} == {
        *(("first", t) for t in ("x", "w", "y", "dy", "dw")),
        *(("frozen", t) for t in ("x", "w", "y", "dy", "dx")),
    }


class Rounded(torch.autograd.Function):
    """A GEMM in FP8 as frameworks write it: operands are scaled and cast by hand, nothing of it is a module."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        one = torch.tensor(1.0)
        x8, w8 = (x * 1.0).clamp(-448, 448).to(torch.float8_e4m3fn), (w * 16.0).clamp(-448, 448).to(torch.float8_e4m3fn)
        ctx.save_for_backward(x8, w8)
        return torch._scaled_mm(x8, w8.t(), one, one / 16, out_dtype=torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x8, w8 = ctx.saved_tensors
        one = torch.tensor(1.0)
        dy8 = (dy * 64.0).to(torch.float8_e5m2)
        w_by_column = w8.t().contiguous().t()
        dx = torch._scaled_mm(dy8, w_by_column, one / 64, one / 16, out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(dy8.t().contiguous(), x8.t().contiguous().t(), one / 64, one, out_dtype=torch.float32)
        return dx, dw


class Fp8Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = weight(16, 32)
        self.out = weight(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return Rounded.apply(Rounded.apply(x, self.weight), self.out)  # type: ignore[no-any-return, no-untyped-call]


def test_fp8_gemms_of_an_autograd_function(attach: Attach, recorded: Recorded) -> None:
    torch.manual_seed(0)
    model, x = Fp8Net(), torch.randn(48, 32)
    seen: list[Tensor] = []
    with attach(model, tensors=ALL):
        y = model(x.bfloat16())
        y.register_hook(seen.append)
        y.float().square().mean().backward()
    rows = {(r["layer"], r["tensor"]): r for r in recorded.rows("tensors")}
    operands = {(layer, t) for layer in ("weight", "out") for t in ("x", "w", "dy")}
    assert operands <= rows.keys()
    assert {rows[key]["dtype"] for key in operands} == {"float8_e4m3fn", "float8_e5m2"}
    assert {key[1] for key in operands if rows[key]["dtype"] == "float8_e5m2"} == {"dy"}
    assert rows["weight", "w"]["shape"] == [16, 32]
    assert rows["weight", "x"]["shape"] == [48, 32]
    assert rows["out", "dy"]["shape"] == [48, 16]
    scales = {(r["layer"], r["tensor"]): r["scale_inv"] for r in recorded.rows("scales", source="framework")}
    assert {scales[layer, "w"] for layer in ("weight", "out")} == {1 / 16}
    assert {scales[layer, "dy"] for layer in ("weight", "out")} == {1 / 64}
    assert model.out.grad is not None
    assert rows["out", "dw"]["amax"] == model.out.grad.abs().max().item()
