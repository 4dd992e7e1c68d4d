"""What is dumped are the operands of the GEMMs: they give back the results that torch computed, under the same key."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from fp8debug.hooks.observed import Observed
from fp8debug.replay import Moment

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

Array = npt.NDArray[np.float64]
ALL = ("x", "w", "dy", "y", "dx", "dw")
F32, BF16 = 2.0**-24, 2.0**-8  # half a unit in the last place, relative


class Attention(nn.Module):
    """Three layers that read one tensor, one used twice, in-place operations, three dimensions, a keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.twice = nn.Linear(6, 6)
        self.out = nn.Linear(6, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.twice(self.twice(x).relu_())
        h = h + (self.q(h) @ self.k(h).transpose(1, 2)).softmax(2) @ self.v(h)
        y: Tensor = self.out(input=h)
        return y


def dumped(run: Recorded) -> dict[tuple[Any, ...], Array]:
    """(step, microbatch, call, layer, tensor) -> matrix, from the forward and backward passes."""
    rows: dict[tuple[Any, ...], list[list[float]]] = defaultdict(list)
    for row in run.rows("values"):
        key = (row["step"], row["microbatch"], row["call"], row["layer"], row["tensor"])
        assert row["row"] == len(rows[key])
        rows[key].append(row["values"])
    return {key: np.array(values) for key, values in rows.items()}


def rounded(matrix: Array, autocast: bool) -> Array:
    """What the GEMM reads."""
    return torch.tensor(matrix).bfloat16().double().numpy() if autocast else matrix


def product(a: Array, b: Array, autocast: bool) -> tuple[Array, Array]:
    """`a @ b` of the rounded operands, and how far a float32 accumulation and one rounding may be from it."""
    a, b = rounded(a, autocast), rounded(b, autocast)
    exact = a @ b
    slack = a.shape[1] * F32 * (abs(a) @ abs(b)) + (BF16 if autocast else F32) * abs(exact)
    return exact, slack


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_results_follow_from_operands(autocast: bool, attach: Attach, recorded: Recorded) -> None:
    torch.manual_seed(1)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    weights, grads = [], []
    with attach(model, tensors=ALL, raw_every=1, every=1000):
        for _ in range(2):
            weights.append({n: p.detach().double().numpy().copy() for n, p in model.named_parameters()})
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
                    loss = model(torch.randn(3, 5, 6, requires_grad=True)).float().square().mean()
                loss.backward()
            grads.append({n: p.grad.double().numpy() for n, p in model.named_parameters() if p.grad is not None})
            optimizer.step()
            optimizer.zero_grad()
    got = dumped(recorded)

    n_calls = {"q": 1, "k": 1, "v": 1, "twice": 2, "out": 1}
    for step in range(2):
        for layer, calls in n_calls.items():
            w = got[step, 0, 0, layer, "w"]
            np.testing.assert_array_equal(w, weights[step][f"{layer}.weight"])
            bias = rounded(weights[step].get(f"{layer}.bias", np.zeros(len(w))), autocast)
            total = np.zeros_like(w)
            for microbatch in range(2):
                dw, slack = np.zeros_like(w), np.zeros_like(w)
                for call in range(calls):
                    key = step, microbatch, call, layer
                    x, dy = got[*key, "x"], got[*key, "dy"]
                    y, y_slack = product(x, w.T, autocast)
                    assert (
                        abs(got[*key, "y"] - y - bias) <= y_slack + (BF16 if autocast else 2 * F32) * abs(y + bias)
                    ).all()
                    dx, dx_slack = product(dy, w, autocast)
                    assert (abs(got[*key, "dx"] - dx) <= dx_slack).all()
                    one, one_slack = product(dy.T, x, autocast)
                    dw, slack = dw + one, slack + one_slack
                slack += (BF16 if autocast else F32) * abs(dw)  # the sum over the calls is rounded once more
                key = step, microbatch, 0, layer
                assert (abs(got[*key, "dw"] - dw) <= slack).all()
                assert abs(dw).max() > 5 * slack.max()
                total += got[*key, "dw"]
            np.testing.assert_allclose(total, grads[step][f"{layer}.weight"], rtol=4 * F32, atol=1e-12)
    # One record of everything for each call, and dw once a micro-batch, w once a step.
    expected = {(s, m, c, n, t) for s in range(2) for m in range(2) for n, k in n_calls.items() for c in range(k)
                for t in ALL if (t not in ("w", "dw") or c == 0) and (t != "w" or m == 0)}  # fmt: skip
    assert got.keys() == expected


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_dtypes(autocast: bool, attach: Attach, recorded: Recorded) -> None:
    """Under autocast the hook sees FP32 where the GEMM reads BF16."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    with attach(model, tensors=ALL), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(torch.randn(5, 3)).float().sum().backward()
    low = "bfloat16" if autocast else "float32"
    seen = {(r["layer"], r["tensor"]): r for r in recorded.rows("tensors")}
    assert {r["gemm_dtype"] for r in seen.values()} == {low}
    assert {key: r["dtype"] for key, r in seen.items()} == {
        **{("0", t): "float32" for t in ("x", "w", "dw")},
        **{("0", t): low for t in ("y", "dy")},
        **{("1", t): low for t in ("x", "y", "dy", "dx")},
        **{("1", t): "float32" for t in ("w", "dw")},
    }
    assert {r["approx"] for r in seen.values()} == {None if autocast else "bf16"}
    assert {key[1]: r["shape"] for key, r in seen.items() if key[0] == "1"} == {
        "x": [5, 4], "w": [2, 4], "y": [5, 2], "dy": [5, 2], "dx": [5, 4], "dw": [2, 4],
    }  # fmt: skip


def test_weights_unfrozen_or_replaced_later_give_dw(attach: Attach, recorded: Recorded) -> None:
    layer = nn.Linear(2, 2).requires_grad_(False)
    model = nn.Sequential(layer, nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with attach(model, tensors=["dw"]):
        for step in range(3):
            if step == 1:
                layer.requires_grad_(True)
            if step == 2:
                layer.weight = nn.Parameter(torch.eye(2))
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert recorded.keys() == [
        *("0/0/0 backward 1.dw", "1/0/0 backward 1.dw", "1/0/0 backward 0.dw"),
        *("2/0/0 backward 1.dw", "2/0/0 backward 0.dw"),
    ]


def test_raw_values_of_every_shape(attach: Attach, recorded: Recorded) -> None:
    """Three dimensions, one row, no row; a vector is one row."""
    model = nn.Linear(3, 2)
    inputs = [torch.arange(12.0).reshape(2, 2, 3), torch.ones(3), torch.ones(0, 3)]
    with attach(model, tensors=["x"], raw_every=1, every=1000):
        for x in inputs:
            model(x)
    values = recorded.rows("values")
    assert [(v["call"], v["row"], v["values"]) for v in values] == [
        *((0, row, [3.0 * row, 3.0 * row + 1, 3.0 * row + 2]) for row in range(4)),
        (1, 0, [1.0, 1.0, 1.0]),
    ]
    assert [row["shape"] for row in recorded.rows("tensors")] == [[2, 2, 3], [3], [0, 3]]


def test_hooks_of_the_user_come_after_ours(attach: Attach, recorded: Recorded) -> None:
    """What is recorded is the GEMM's, not what a hook that was there before makes of it."""
    layer = nn.Linear(2, 2, bias=False)
    torch.nn.init.constant_(layer.weight, 0.5)
    layer.register_forward_hook(lambda module, args, y: y * 100)
    with attach(layer, tensors=["y", "dy"]):
        layer(torch.ones(1, 2)).sum().backward()
    assert {row["tensor"]: row["amax"] for row in recorded.rows("tensors")} == {"y": 1.0, "dy": 100.0}


def test_weights_that_are_other_tensors(attach: Attach, recorded: Recorded) -> None:
    """A class that stands for one tensor is looked into; one that stands for several is said to be none."""
    plain, wrapped, double = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
    weight = wrapped.weight.detach().clone()
    wrapped.weight = nn.Parameter(Cover(weight))
    double.weight = nn.Parameter(TwoTensor(weight.clone(), weight.clone()))
    with attach(nn.Sequential(plain, wrapped, double), tensors=["w"]) as session:
        session._observation.observe(Observed("1", "w", wrapped.weight, weight.dtype, Moment(0, 0, 0, "forward")))
        session._observation.observe(Observed("2", "w", double.weight, weight.dtype, Moment(0, 0, 0, "forward")))
    row = recorded.row("tensors", layer="1")
    assert (row["status"], row["amax"]) == ("ok", weight.abs().max().item())
    row = recorded.row("tensors", layer="2")
    assert (row["status"], row["amax"]) == (
        "unsupported dtype: TwoTensor cannot be measured: it is made of several tensors",
        None,
    )


class Cover(torch.Tensor):
    """A tensor without memory of its own, as wrappers of weights are."""

    @staticmethod
    def __new__(cls, held: Tensor) -> Cover:
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype)

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, Tensor], *about: Any) -> Cover:
        return Cover(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        result = func(*(a.held if isinstance(a, Cover) else a for a in args), **(kwargs or {}))
        return Cover(result) if func is torch.ops.aten.detach.default else result
