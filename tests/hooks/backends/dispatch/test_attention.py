"""QK^T and PV, on request."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

RAW: dict[str, Any] = {"raw_every": 1, "every": 1, "recipes": ["current"], "attention": True}
B, H, T, D = 2, 2, 5, 4


class SelfAttention(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.qkv, self.out = nn.Linear(H * D, 3 * H * D), nn.Linear(H * D, H * D)
        self.kept: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.view(B, T, H, D).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        if self.fused:
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            kept = {"q": q, "k": k, "v": v, "y": y}
        else:
            s = q @ k.transpose(-1, -2)
            p = functional.dropout((s * D**-0.5).softmax(-1, dtype=torch.float32).to(q.dtype), 0.25)
            y = p @ v
            kept = {"q": q, "k": k, "v": v, "s": s, "p": p, "y": y}
        if x.requires_grad and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self.kept = kept
            for tensor in kept.values():
                tensor.retain_grad()
        return self.out(y.transpose(1, 2).reshape(B, T, H * D))  # type: ignore[no-any-return]


class Block(nn.Module):
    def __init__(self, fused: bool, reentrant: bool | None) -> None:
        super().__init__()
        self.attn = SelfAttention(fused)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.attn(x)  # type: ignore[no-any-return]
        return checkpoint(self.attn, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


def matrices(run: Recorded) -> dict[tuple[str, str], Any]:
    rows: dict[tuple[str, str], list[list[float]]] = {}
    for row in run.rows("values", call=0):
        if row["pass"] != "recompute":
            rows.setdefault((row["layer"], row["tensor"]), []).append(row["values"])
    return {key: np.array(value) for key, value in rows.items()}


def flat(tensor: Tensor | None) -> Any:
    assert tensor is not None
    return tensor.detach().reshape(-1, tensor.shape[-1]).float().numpy()


@pytest.mark.captures(
    case="attention GEMMs (QK^T, PV)",
    how="`attention = true` / `--attention`; tensors `key` and `value`",
    sees="layers `<module>.qk` (x = Q, w = K) and `<module>.pv` (x = P, w = V^T) with dy; K and V themselves",
    limits="in a fused kernel P and the gradient of the scores stay inside: one event `not_captured` a module",
)
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_written_out(autocast: bool, attach: Attach, recorded: Recorded) -> None:
    torch.manual_seed(0)
    model = Block(fused=False, reentrant=None)
    x = torch.randn(B, T, H * D, requires_grad=True)
    with attach(model, tensors=["x", "w", "dy", "key", "value"], **RAW) as session:
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            y = model(x)
        y.float().square().sum().backward()
    assert session.close().problems == []
    got, kept = matrices(recorded), model.attn.kept
    expected = {
        ("attn.qk", "x"): kept["q"], ("attn.qk", "w"): kept["k"], ("attn.qk", "dy"): kept["s"].grad,
        ("attn.pv", "x"): kept["p"], ("attn.pv", "w"): kept["v"].mT, ("attn.pv", "dy"): kept["y"].grad,
        ("attn", "key"): kept["k"], ("attn", "value"): kept["v"],
    }  # fmt: skip
    assert {key for key in got if key[0].startswith("attn") and key[0][-2:] in ("qk", "pv", "tn")} == expected.keys()
    for key, tensor in expected.items():
        np.testing.assert_array_equal(got[key], flat(tensor), err_msg=str(key))
    # dy^T x is the gradient of K, head by head.
    s, q = got["attn.qk", "dy"].reshape(B * H, T, T), got["attn.qk", "x"].reshape(B * H, T, D)
    slack = 2**-6 if autocast else 1e-5
    np.testing.assert_allclose(
        s.transpose(0, 2, 1) @ q, flat(kept["k"].grad).reshape(B * H, T, D), rtol=slack, atol=slack
    )
    dtype = {r["gemm_dtype"] for r in recorded.rows("tensors") if r["layer"] in ("attn.qk", "attn.pv")}
    assert dtype == {"bfloat16" if autocast else "float32"}
    kinds = {r["name"]: r["kind"] for r in recorded.manifest["layers"]}
    assert kinds == {
        "attn.qkv": "Linear", "attn.out": "Linear", "attn.qk": "attention", "attn.pv": "attention", "attn": "attention",
    }  # fmt: skip
    assert {r["layer"] for r in recorded.rows("gemms")} == {"attn.qkv", "attn.out"}, "heads are no one GEMM"


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed(reentrant: bool, attach: Attach, recorded: Recorded) -> None:
    torch.manual_seed(0)
    model = Block(fused=False, reentrant=reentrant)
    with attach(model, tensors=["x", "w", "dy"], **RAW | {"raw_every": 0}):
        model(torch.randn(B, T, H * D, requires_grad=True)).sum().backward()
    rows = [(r["pass"], r["layer"], r["tensor"]) for r in recorded.rows("tensors") if r["layer"][-2:] in ("qk", "pv")]
    operands = [(layer, t) for layer in ("attn.qk", "attn.pv") for t in ("x", "w")]
    assert sorted(rows) == sorted(
        [(p, layer, t) for p in ("forward", "recompute") for layer, t in operands]
        + [("backward", layer, "dy") for layer in ("attn.qk", "attn.pv")]
    )


def test_fused(attach: Attach, recorded: Recorded) -> None:
    torch.manual_seed(0)
    model = Block(fused=True, reentrant=None)
    with attach(model, tensors=["x", "w", "dy", "value"], exclude=["out"], **RAW):
        model(torch.randn(B, T, H * D, requires_grad=True)).square().sum().backward()
    got, kept = matrices(recorded), model.attn.kept
    expected = {
        ("attn.qk", "x"): kept["q"], ("attn.qk", "w"): kept["k"],
        ("attn.pv", "w"): kept["v"].mT, ("attn.pv", "dy"): kept["y"].grad, ("attn", "value"): kept["v"],
    }  # fmt: skip
    assert {key for key in got if key[0] != "attn.qkv"} == expected.keys()
    for key, tensor in expected.items():
        np.testing.assert_array_equal(got[key], flat(tensor), err_msg=str(key))
    (event,) = recorded.rows("events")
    assert (event["kind"], event["layer"]) == ("not_captured", "attn.pv")


def test_selection_and_off(attach: Attach, recorded: Recorded) -> None:
    model = Block(fused=False, reentrant=None)
    with attach(model, layers=["qk"], tensors=["x", "w"], **RAW | {"attention": True}):
        model(torch.randn(B, T, H * D)).sum().backward()
    assert {r["layer"] for r in recorded.rows("tensors")} == {"attn.qkv", "attn.qk"}


def test_only_the_cache(attach: Attach, recorded: Recorded) -> None:
    """`key` and `value` without the GEMMs."""
    model = Block(fused=False, reentrant=None)
    with attach(model, tensors=["key", "value"], **RAW | {"attention": False}) as session:
        model(torch.randn(B, T, H * D)).sum().backward()
    assert {(r["layer"], r["tensor"]) for r in recorded.rows("tensors")} == {("attn", "key"), ("attn", "value")}
    assert session.active is False
