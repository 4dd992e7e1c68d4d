"""Emulated training is torchao's `emulate=True`, bit for bit: every loss, gradient and weight over several steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fp8debug

Prepare = Callable[[nn.Module], nn.Module]


class Model(nn.Module):
    """Three-dimensional input, biases and none, a layer used twice, a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(24, 40)
        self.twice = nn.Linear(40, 40, bias=False)
        self.head = nn.Linear(40, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        h = h + self.twice(nn.functional.gelu(self.twice(h)))
        y: Tensor = self.head(h)
        return y


def train(prepare: Prepare, dtype: torch.dtype, autocast: bool) -> list[Tensor]:
    """Everything that comes out of four steps of two micro-batches."""
    torch.manual_seed(0)
    model = prepare(Model().to(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen: list[Tensor] = []
    for step in range(4):
        for part in range(2):
            x = torch.randn(3, 7, 24, generator=torch.Generator().manual_seed(2 * step + part))
            x = (x * 10.0 ** (step - 2)).to(dtype).requires_grad_()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                # On the CPU torchao leaves out autocast's cast of an FP32 input, which it does on GPUs.
                y = model(x.bfloat16() if autocast else x)
            loss = y.float().square().mean()
            loss.backward()
            assert x.grad is not None
            seen += [loss.detach(), y.detach(), x.grad]
        seen += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return [*seen, *(p.detach() for p in model.parameters())]


def with_torchao(**config: Any) -> Prepare:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    recipe = config.pop("recipe", None)
    chosen = Float8LinearConfig.from_recipe_name(recipe) if recipe else Float8LinearConfig(**config)
    object.__setattr__(chosen, "emulate", True)  # frozen, and recipes by name have no way to say it
    return lambda model: convert_to_float8_training(model, config=chosen)


def with_us(recipe: str) -> Prepare:
    def prepare(model: nn.Module) -> nn.Module:
        fp8debug.emulate(model, recipe, quiet=True)
        return model

    return prepare


@pytest.mark.parametrize("settings", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize(
    ("recipe", "config"),
    [
        ("current", {}),
        ("current:power_of_two=true", {"round_scales_to_power_of_2": True}),
        ("rowwise", {"recipe": "rowwise"}),
    ],
    ids=["tensorwise", "power of two", "rowwise"],
)
def test_bit_equal(recipe: str, config: dict[str, Any], settings: str) -> None:
    dtype = torch.bfloat16 if settings == "bfloat16" else torch.float32
    autocast = settings == "autocast"
    theirs = train(with_torchao(**config), dtype, autocast)
    ours = train(with_us(recipe), dtype, autocast)
    assert len(theirs) == len(ours) == 4 * (2 * 3 + 5) + 5
    assert [i for i, (a, b) in enumerate(zip(theirs, ours, strict=True)) if not torch.equal(a, b)] == []
    plain = train(lambda model: model, dtype, autocast)
    assert not any(torch.equal(a, b) for a, b in zip(plain[:3], ours[:3], strict=True))


def test_a_tensor_of_zeros() -> None:
    """torchao takes 1e-12 for its amax, and we 1 for its scale; both give zeros."""
    for prepare in (with_torchao(), with_us("current"), with_us("current:flavour=torchao")):
        layer = prepare(nn.Sequential(nn.Linear(16, 16)))
        x = torch.zeros(4, 16, requires_grad=True)
        (layer(x) * 0).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.zeros(4, 16)) and layer(x).isfinite().all()
