"""The dtype a GEMM ran in, and the one it was asked to run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn

from fp8debug.hooks.backends.precision import precision_asked

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded


class Router(nn.Linear):
    """Leaves autocast, as routers of experts do."""

    def forward(self, input: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float())


@pytest.mark.captures(
    case="autocast",
    how="hooks on modules",
    sees="gemm_dtype: what the GEMM ran in, while dtype is what the hook saw before the cast; precision_asked: what "
    "autocast or the weight asked for",
    limits="a layer that ran in another dtype than it was asked to is said once, as the event precision_differs",
)
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast(low: torch.dtype, attach: Attach, recorded: Recorded) -> None:
    model = nn.ModuleDict({"plain": nn.Linear(4, 4), "router": Router(4, 2)})
    word = str(low).removeprefix("torch.")
    with attach(model, tensors=["x", "w", "dy"]):
        with torch.autocast("cpu", low):
            for _ in range(2):
                model["router"](model["plain"](torch.randn(3, 4))).sum().backward()
        model["plain"](torch.randn(3, 4)).sum().backward()
    rows = recorded.rows("tensors")
    asked = {(r["layer"], r["microbatch"], r["gemm_dtype"], r["precision_asked"]) for r in rows}
    assert asked == {
        *(("plain", part, word, word) for part in range(2)),
        *(("router", part, "float32", word) for part in range(2)),
        ("plain", 2, "float32", "float32"),
    }
    event = recorded.row("events", layer="router")
    assert event["kind"] == "precision_differs"
    assert event["message"] == f"asked to run in {word}, ran in float32"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_without_autocast_the_weight_says(dtype: torch.dtype, attach: Attach, recorded: Recorded) -> None:
    model = nn.Linear(4, 2, dtype=dtype)
    with attach(model):
        model(torch.randn(3, 4, dtype=dtype)).sum().backward()
    word = str(dtype).removeprefix("torch.")
    assert {(r["gemm_dtype"], r["precision_asked"]) for r in recorded.rows("tensors")} == {(word, word)}
    assert recorded.rows("events") == []


def test_float8_layers_are_asked_per_operand() -> None:
    from torchao.float8.config import Float8LinearConfig
    from torchao.float8.float8_linear import Float8Linear

    for recipe, dy in (("tensorwise", "float8_e5m2"), ("rowwise", "float8_e4m3fn")):
        layer = Float8Linear.from_float(nn.Linear(16, 16), Float8LinearConfig.from_recipe_name(recipe))
        asked = {tensor: precision_asked(layer, tensor, torch.bfloat16) for tensor in ("x", "w", "dy")}
        assert asked == {"x": "float8_e4m3fn", "w": "float8_e4m3fn", "dy": dy}
    kept = Float8LinearConfig.from_recipe_name("rowwise_with_gw_hp")
    layer = Float8Linear.from_float(nn.Linear(16, 16), kept)
    assert precision_asked(layer, "dw", torch.bfloat16) == "bfloat16"
    assert precision_asked(nn.Linear(2, 2), "x", torch.float16) == "float16"
