"""Emulation by a fallback plan: what each layer, operand and GEMM computes, beside references built by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fp8debug
from fp8debug.errors import UsageError
from fp8debug.hooks.emulate.layer import departures_text
from fp8debug.hooks.emulate.linear import emulated_forward
from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.plans import Plan, PlanEntry, plan_text
from fp8debug.recipes import parse_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hooks.conftest import Attach, Recorded

READS = ("fprop", "x"), ("fprop", "w"), ("dgrad", "dy"), ("dgrad", "w"), ("wgrad", "dy"), ("wgrad", "x")


def plan(*entries: tuple[Any, ...], recipe: str = "current") -> Plan:
    """Entries as (layer, change), (layer, change, tensor) or (layer, change, tensor, GEMM)."""
    return Plan(recipe, tuple(PlanEntry(*entry) for entry in entries))


@pytest.fixture
def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32, bias=False), nn.GELU(), nn.Linear(32, 16, bias=False))


def outcome(model: nn.Module, size: float = 1.0) -> list[Tensor]:
    """Result, dx and every dw."""
    x = (torch.randn(24, 16, generator=torch.Generator().manual_seed(1)) * size).requires_grad_()
    model.zero_grad()
    y = model(x)
    (y * torch.linspace(-1, 1, 16)).square().sum().backward()
    gradients = [x.grad, *(p.grad for p in model.parameters())]
    return [y.detach(), *(gradient.clone() for gradient in gradients if gradient is not None)]


def emulated(model: nn.Module, *args: Any, **options: Any) -> list[Tensor]:
    with fp8debug.emulate(model, *args, quiet=True, **options):
        return outcome(model)


def equal(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(map(torch.equal, a, b))


def cast(t: Tensor, dtype: torch.dtype, scale: float | None = None) -> Tensor:
    """One scale a tensor, in float32, as the recipes define it."""
    largest = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}[dtype]
    factor = torch.tensor(np.float32(largest) / np.float32(t.abs().max()) if scale is None else np.float32(scale))
    return (t * factor).clamp(-largest, largest).to(dtype).float() / factor


def current(t: Tensor, tensor: str) -> Tensor:
    return cast(t, torch.float8_e5m2 if tensor == "dy" else torch.float8_e4m3fn)


def gemms(x: Tensor, w: Tensor, dy: Tensor, read: Any) -> list[Tensor]:
    """y, dx and dw where `read(gemm, tensor, value)` gives what a GEMM reads."""
    y = read("fprop", "x", x) @ read("fprop", "w", w).T
    dx = read("dgrad", "dy", dy) @ read("dgrad", "w", w)
    return [y, dx, read("wgrad", "dy", dy).T @ read("wgrad", "x", x)]


def one_layer(entries: Plan) -> tuple[list[Tensor], tuple[Tensor, Tensor, Tensor]]:
    """y, dx and dw of a single layer under a plan, and its operands."""
    generator = torch.Generator().manual_seed(2)
    x, dy = torch.randn(24, 16, generator=generator), torch.randn(24, 32, generator=generator)
    layer = nn.Linear(16, 32, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(32, 16, generator=generator))
    own = x.clone().requires_grad_()
    with fp8debug.emulate(nn.ModuleDict({"fc": layer}), plan=entries, quiet=True):
        y = layer(own)
        y.backward(dy)
    assert own.grad is not None and layer.weight.grad is not None
    return [y.detach(), own.grad, layer.weight.grad], (x, layer.weight.detach(), dy)


@pytest.mark.parametrize(
    ("entry", "change"),
    [
        (("fc", "bf16", None, "wgrad"), {("wgrad", "x"): "bf16", ("wgrad", "dy"): "bf16"}),
        (("fc", "bf16", "w"), {("fprop", "w"): "bf16", ("dgrad", "w"): "bf16"}),
        (("fc", "bf16", "x", "fprop"), {("fprop", "x"): "bf16"}),
        (("fc", "current:power_of_two=true", "x"), {("fprop", "x"): "pow2", ("wgrad", "x"): "pow2"}),
        (("fc", "current:fp8_format=E4M3", "dy", "dgrad"), {("dgrad", "dy"): "E4M3"}),
    ],
    ids=["GEMM in bf16", "operand in bf16", "read in bf16", "operand otherwise", "read otherwise"],
)
def test_a_departure_is_where_the_plan_has_it(entry: tuple[Any, ...], change: dict[tuple[str, str], str]) -> None:
    got, operands = one_layer(plan(entry))

    def read(gemm: str, tensor: str, value: Tensor) -> Tensor:
        how = change.get((gemm, tensor))
        if how == "bf16":
            return value
        if how == "E4M3":
            return cast(value, torch.float8_e4m3fn)
        if how == "pow2":
            scale = 448.0 / float(value.abs().max())
            return cast(value, torch.float8_e4m3fn, 2.0 ** (np.frexp(scale)[1] - 1))
        return current(value, tensor)

    assert equal(got, gemms(*operands, read))
    assert not equal(got, gemms(*operands, lambda gemm, tensor, value: current(value, tensor)))


def test_a_layer_in_bf16_is_left_as_it_is(model: nn.Sequential) -> None:
    plain = outcome(model)
    with fp8debug.emulate(model, plan=plan(("0", "bf16")), quiet=True) as emulation:
        assert (emulation.layers, emulation.kept) == (["2"], ["0"])
        assert "forward" not in vars(model[0])
        kept = outcome(model)
    assert equal(kept, emulated(model, "current", keep_bf16="0"))
    assert not torch.equal(kept[0], plain[0])
    with pytest.raises(UsageError, match="nothing is left to emulate: 2 of 2 layers"):
        fp8debug.emulate(model, plan=plan(("0", "bf16"), ("2", "bf16")))


def test_layers_with_recipes_of_their_own_are_two_emulations_in_one(model: nn.Sequential) -> None:
    entries = plan(("2", "mxfp8"))
    with (
        fp8debug.emulate(model, "current", layers="0", quiet=True),
        fp8debug.emulate(model, "mxfp8", layers="2", quiet=True),
    ):
        both = outcome(model)
    assert equal(emulated(model, plan=entries), both)
    assert equal(emulated(model, "delayed", plan=plan(("0", "current"), ("2", "current"))), emulated(model, "current"))
    without = plan(recipe="delayed")
    assert equal(emulated(model, plan=without), emulated(model, "delayed"))
    assert equal(emulated(model, "current", plan=without), emulated(model, "current"))


def test_an_operand_has_a_history_for_each_delayed_recipe(model: nn.Sequential) -> None:
    """dy of wgrad by the last amax, dy of dgrad by the largest of all: other scales from the third step on."""
    entries = plan(("2", "delayed:amax_history_len=1", "dy", "wgrad"), recipe="delayed")
    amaxes: list[float] = []

    def note(module: nn.Module, dx: Any, dy: Any) -> None:
        amaxes.append(float(dy[0].abs().max()))

    model[2].register_full_backward_hook(note)
    told: list[dict[str, float]] = []
    with fp8debug.emulate(model, plan=entries, quiet=True):
        for size in (1.0, 8.0, 1.0, 1.0):
            outcome(model, size)
            forward = emulated_forward(model[2])
            assert forward is not None and forward.last_call is not None
            told.append({s.recipe: float(s.scale or 0) for s in forward.last_call.scales_in_force("dy")})

    def scale(seen: list[float]) -> float:
        return float(np.float32(57344) / np.float32(max(seen))) if seen else 1.0

    assert [step["delayed"] for step in told] == [scale(amaxes[:i]) for i in range(4)]
    assert [step["delayed:amax_history_len=1"] for step in told] == [scale(amaxes[max(i - 1, 0) : i]) for i in range(4)]
    assert told[3]["delayed"] != told[3]["delayed:amax_history_len=1"]


def test_a_rotation_stands_in_both_operands_of_the_gemm() -> None:
    """NVFP4 rotates x and dy of wgrad: where one of them is exact it is rotated all the same, and it cancels."""
    exact, operands = one_layer(plan(("fc", "bf16", None, "fprop"), ("fc", "bf16", "x"), recipe="nvfp4"))
    plain = gemms(*operands, lambda gemm, tensor, value: value)
    error = (exact[2] - plain[2]).norm() / plain[2].norm()
    assert 0.01 < error < 0.2


def test_texts() -> None:
    base = {key: parse_recipe("delayed") for key in READS}

    def text(*entries: tuple[Any, ...]) -> str:
        return EmulationPlan.from_words(None, plan=plan(*entries, recipe="delayed")).of_layer("fc").text

    assert text() == "delayed"
    assert text(("fc", "current", "w"), ("fc", "bf16", None, "wgrad")) == "delayed, w: current, wgrad in bf16"
    assert text(("fc", "bf16", "dy", "dgrad")) == "delayed, dy in dgrad: bf16"
    assert text(("fc", "mxfp8")) == "delayed, all in mxfp8"
    assert text(("fc", "mxfp8"), ("fc", "delayed")) == "delayed"
    assert departures_text(base, {}) == "all in bf16"
    some = EmulationPlan.from_words("delayed", only="w", plan=plan(("fc", "bf16", None, "fprop")))
    assert some.of_layer("fc").text == "delayed, only w, fprop in bf16"


def test_what_a_capture_says_of_it(
    model: nn.Sequential, attach: Attach, recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(plan_text(plan(("2", "bf16"), ("0", "mxfp8", "dy"), ("blocks.9", "bf16"), recipe="delayed")))
    with attach(model, plan=file, recipes="current", quiet=False):
        outcome(model)
        torch.optim.SGD(model.parameters()).step()
    err = capsys.readouterr().err
    assert (
        "fp8debug: emulating delayed in 1 layer, 1 kept in high precision, 1 computing otherwise by the plan; " in err
    )
    assert "; the plan is about layers that are not here: 'blocks.9'\n" in err
    assert {layer["name"]: layer["emulated"] for layer in recorded.manifest["layers"]} == {
        "0": "delayed, dy: mxfp8",
        "2": None,
    }
    assert recorded.manifest["recipes"] == ["current", "delayed", "mxfp8"]
    (event,) = [row for row in recorded.rows("events") if row["kind"] == "unmatched_plan"]
    assert event["message"] == "the plan is about a layer that is not here: 'blocks.9'"


@pytest.mark.parametrize(
    ("recipe", "given", "message"),
    [
        (None, None, "neither a recipe nor a plan"),
        (None, "nosuch.toml", "cannot read the plan nosuch.toml"),
        (None, plan(("0", "curent")), "unknown recipe 'curent'"),
    ],
)
def test_usage_errors(model: nn.Sequential, recipe: str | None, given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fp8debug.emulate(model, recipe, plan=given)
