"""How a layer may be used: with a weight from outside, twice, never, shared, frozen, without tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tests.hooks.backends.conftest import Matrices
    from tests.hooks.conftest import Attach, Recorded


@pytest.mark.captures(
    case="torch.func / functional_call",
    how="hooks on modules",
    sees="w as it was given to the call, not as the module has it; below grad and vmap what their tensors hold",
    limits="of several calls with other weights in one step, the first call's w",
)
def test_functional_call(
    attach: Attach,
    recorded: Recorded,
    everything: dict[str, Any],
    matrices: Callable[..., Matrices],
) -> None:
    layer = nn.Linear(4, 3)
    model = nn.Sequential(layer)
    stored = layer.weight.detach().clone()
    given = {"0.weight": torch.randn(3, 4), "0.bias": torch.zeros(3)}
    x = torch.randn(5, 4)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        y: Tensor = torch.func.functional_call(model, parameters, (x,)).square().sum()
        return y

    with attach(model, **everything):
        gradient = torch.func.grad(loss)(given)["0.weight"]
        leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
        loss(leaves).backward()
    got = matrices(recorded)
    np.testing.assert_array_equal(got[0, 0, 0, "0", "w"], given["0.weight"].double().numpy())
    assert not torch.equal(stored, given["0.weight"])
    assert torch.equal(layer.weight, stored)
    for key in [key for key in got if key[4] == "dy"]:
        wgrad = got[key].T @ got[(*key[:4], "x")]
        np.testing.assert_allclose(wgrad, gradient.double().numpy(), rtol=1e-5, atol=1e-5)
    assert {key[4] for key in got} >= {"x", "w", "y", "dy"}


class Uses(nn.Module):
    """In place behind a layer, one layer twice, one weight in two layers, one frozen, one without work."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.twice = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.twice.weight
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.never = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu_()
        h = self.twice(self.twice(h).tanh_())
        y: Tensor = self.frozen(self.tied(h))
        return y


@pytest.mark.captures(
    case="in-place ops after the layer, shared (tied) weights, modules called twice a step, not called, frozen layers",
    how="hooks on modules; gradients by tensor hooks",
    sees="one record a call under its own number; dw once a micro-batch over all uses of the weight; a frozen layer's "
    "x, w and dy",
    limits="a layer that never ran is the event never_fired; a frozen one has no dw",
)
def test_every_kind_of_use(
    attach: Attach,
    recorded: Recorded,
    everything: dict[str, Any],
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    torch.manual_seed(3)
    model = Uses()
    with attach(model, **everything) as session:
        model(torch.randn(2, 5, 6)).square().mean().backward()
    got = matrices(recorded)
    calls = {
        layer: {key[2] for key in got if key[3] == layer and key[4] == "dy"} for layer in dict(model.named_children())
    }
    assert calls == {"first": {0}, "twice": {0, 1}, "tied": {0}, "frozen": {0}, "never": set()}
    assert {key[3] for key in got if key[4] == "w"} == {"first", "twice", "tied", "frozen"}
    assert {key[3] for key in got if key[4] == "dw"} == {"first", "twice", "tied"}
    assert gradients_follow({key: value for key, value in got.items() if key[3] == "first"}) == {"first"}
    shared = [("twice", 0), ("twice", 1), ("tied", 0)]
    total = sum(got[0, 0, call, layer, "dy"].T @ got[0, 0, call, layer, "x"] for layer, call in shared)
    for layer in ("twice", "tied"):
        np.testing.assert_allclose(got[0, 0, 0, layer, "dw"], total, rtol=1e-4, atol=1e-6)
    assert model.twice.weight.grad is not None
    np.testing.assert_allclose(model.twice.weight.grad.double().numpy(), total, rtol=1e-4, atol=1e-6)
    assert [(event["kind"], event["layer"]) for event in recorded.rows("events")] == [("never_fired", "never")]
    assert session.close().problems == ["1 matched layer never ran: never"]


@pytest.mark.captures(
    case="zero tokens",
    how="hooks on modules",
    sees="a record with its shape and status no_tokens, n = 0; no part of any sum or history",
    limits="",
)
@pytest.mark.parametrize("autocast", [False, True])
def test_zero_tokens(autocast: bool, attach: Attach, recorded: Recorded, everything: dict[str, Any]) -> None:
    """An expert that no token was sent to."""
    model = nn.ModuleDict({"busy": nn.Linear(4, 4), "idle": nn.Linear(4, 4)})
    with attach(model, engine=None, **everything), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        x = torch.randn(6, 4, requires_grad=True)
        y = torch.cat([model["busy"](x), model["idle"](x[:0])])
        y.float().square().mean().backward()
    assert recorded.manifest["status"] == "closed"
    idle = {row["tensor"]: row for row in recorded.rows("tensors", layer="idle")}
    assert set(idle) == {"x", "w", "y", "dy", "dx", "dw"}
    for tensor in ("x", "y", "dy", "dx"):
        assert (idle[tensor]["status"], idle[tensor]["n"], idle[tensor]["shape"]) == ("no_tokens", 0, [0, 4])
        assert not idle[tensor]["amax"]
        assert not recorded.rows("errors", seq=idle[tensor]["seq"])
    assert (idle["w"]["status"], idle["dw"]["status"]) == ("ok", "ok")
    assert idle["dw"]["amax"] == 0.0
    assert recorded.rows("events") == []


def test_a_weight_that_is_computed_on_access_is_said(attach: Attach, recorded: Recorded) -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    with attach(nn.Sequential(layer)):
        for _ in range(2):
            layer(torch.ones(1, 3)).sum().backward()
    assert {row["tensor"] for row in recorded.rows("tensors")} == {"x", "dy"}
    event = recorded.row("events", layer="0")
    assert (event["kind"], event["tensor"]) == ("not_captured", "w")
