"""Layers that are no nn.Linear, or not only: GPT-2's Conv1D, Megatron's, adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.backends.kinds import kind_of

if TYPE_CHECKING:
    from tests.hooks.backends.conftest import Matrices
    from tests.hooks.conftest import Attach, Recorded


class ColumnParallelLinear(nn.Module):
    """As Megatron's, on one rank: sequence first, (output, bias), a weight that may come with the call."""

    def __init__(self, input_size: int, output_size: int, *, skip_weight: bool = False) -> None:
        super().__init__()
        self.input_size, self.output_size, self.output_size_per_partition = input_size, output_size, output_size
        self.weight = None if skip_weight else nn.Parameter(torch.randn(output_size, input_size))
        self.bias = nn.Parameter(torch.zeros(output_size))

    def forward(self, input_: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        given = self.weight if weight is None else weight
        assert given is not None
        return torch.matmul(input_, given.t()), self.bias


class RowParallelLinear(nn.Module):
    def __init__(self, input_size: int, output_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(output_size, input_size))

    def forward(self, input_: Tensor) -> tuple[Tensor, None]:
        return F.linear(input_, self.weight), None


class SpecialRow(RowParallelLinear):
    """A subclass, as frameworks make them."""


class Layer(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.layer_number = number
        self.up = ColumnParallelLinear(6, 8)
        self.down = SpecialRow(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        h, bias = self.up(x)
        y: Tensor = x + self.down(F.gelu(h + bias))[0]
        return y


class Stage(nn.Module):
    """The last stage of a pipeline, with embeddings tied to the output."""

    def __init__(self, first_number: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.layers = nn.ModuleList([Layer(first_number + i) for i in range(2)])
        self.output_layer = ColumnParallelLinear(6, 5, skip_weight=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.output_layer(x, weight=self.embedding.weight)[0]
        return y


@pytest.mark.captures(
    case="Megatron-style modules",
    how="hooks on modules, recognised by the names of their classes",
    sees="x of (sequence, batch, K), w of this rank also where the call brings it (tied embeddings), dy of the output "
    "before the bias; layers have their number in the whole model under pipeline parallelism",
    limits="tried with stand-ins of these classes, not with Megatron on GPUs; with sequence parallelism x is this "
    "rank's part of the sequence and says so",
)
def test_megatron_style_modules(
    attach: Attach,
    recorded: Recorded,
    everything: dict[str, Any],
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    torch.manual_seed(0)
    model = Stage(first_number=5)
    names = [f"layers.{number}.{part}" for number in (4, 5) for part in ("up", "down")] + ["output_layer"]
    tokens = torch.randint(0, 5, (7, 3))
    with attach(model, **everything):
        for _ in range(2):
            model(tokens).square().mean().backward()
    assert [layer["name"] for layer in recorded.manifest["layers"]] == names
    assert recorded.manifest["layers"][0]["raw_name"] == "layers.0.up"
    assert [layer["kind"] for layer in recorded.manifest["layers"]] == [
        *["ColumnParallelLinear", "RowParallelLinear"] * 2,
        "ColumnParallelLinear",
    ]
    shapes = {(r["layer"], r["tensor"]): r["shape"] for r in recorded.rows("tensors")}
    assert shapes["layers.4.up", "x"] == [7, 3, 6]
    assert shapes["layers.4.up", "dy"] == [7, 3, 8]
    assert shapes["layers.4.down", "w"] == [6, 8]
    got = matrices(recorded)
    np.testing.assert_array_equal(got[0, 0, 0, "output_layer", "w"], model.embedding.weight.detach().double().numpy())
    # The embedding's gradient has the output's share and its own, which is not a GEMM.
    assert gradients_follow({key: value for key, value in got.items() if key[3] != "output_layer"}) == set(names[:-1])
    layer = got[0, 0, 0, "output_layer", "dy"].T @ got[0, 0, 0, "output_layer", "x"]
    assert abs(got[0, 0, 0, "output_layer", "dw"] - layer).max() > 1e-4


@pytest.mark.parametrize(
    ("numbers", "segments"),
    [
        ([1, 2], [0, 1]),
        ([5, 6], [4, 5]),
        ([0, 1], [0, 1]),  # counted from 0: the name's own numbers are the same
    ],
)
def test_layers_have_their_numbers_in_the_whole_model(numbers: list[int], segments: list[int]) -> None:
    model = nn.ModuleDict({"module": nn.ModuleList([Layer(number) for number in numbers])})
    names = [layer.name for layer in find_layers(model)]
    assert names == [f"{segment}.{part}" for segment in segments for part in ("up", "down")]


def test_the_output_before_the_weight_is_known() -> None:
    """A layer without a weight has the sizes that it was made with; a module of that name without either is none."""
    (layer,) = find_layers(nn.ModuleDict({"out": ColumnParallelLinear(6, 5, skip_weight=True)}))
    assert (layer.in_features, layer.out_features) == (6, 5)
    assert kind_of(type("ColumnParallelLinear", (nn.Identity,), {})()) is None
    assert kind_of(type("Conv1D", (nn.Linear,), {})(2, 2)) is not None
    assert kind_of(type("Conv1D", (nn.Module,), {"weight": torch.ones(2, 2)})()) is None, "some other Conv1D"


@pytest.mark.captures(
    case="HF Conv1D",
    how="hooks on modules; the weight is read transposed",
    sees="w as (N, K) like everywhere, dw too",
    limits="",
)
def test_conv1d(
    attach: Attach,
    recorded: Recorded,
    everything: dict[str, Any],
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    first = Conv1D(8, 6)
    model = nn.Sequential(first, nn.ReLU(inplace=True), Conv1D(3, 8))
    with attach(model, **everything):
        y = model(torch.randn(2, 5, 6))
        y.square().mean().backward()
    assert [(x["kind"], x["in_features"], x["out_features"]) for x in recorded.manifest["layers"]] == [
        ("Conv1D", 6, 8),
        ("Conv1D", 8, 3),
    ]
    got = matrices(recorded)
    np.testing.assert_array_equal(got[0, 0, 0, "0", "w"], first.weight.detach().T.double().numpy())
    np.testing.assert_array_equal(got[0, 0, 0, "0", "dw"], first.weight.grad.T.double().numpy())
    assert gradients_follow(got) == {"0", "2"}
    assert {r["shape"][0] for r in recorded.rows("tensors", layer="0", tensor="w")} == {8}


@pytest.mark.captures(
    case="LoRA adapters",
    how="hooks on modules: the frozen base layer and the two adapter matrices are layers of their own",
    sees="x, w, dy of base_layer, lora_A and lora_B; dw of the adapters",
    limits="no dw of a frozen layer, and no dy where its input needs no gradient either: no GEMM reads them",
)
def test_lora(
    attach: Attach,
    recorded: Recorded,
    everything: dict[str, Any],
    matrices: Callable[..., Matrices],
    gradients_follow: Callable[..., set[str]],
) -> None:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
    config = LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False)
    model = get_peft_model(base, config)
    with attach(model, **everything):
        model(torch.randn(5, 6)).square().mean().backward()
    adapters = {f"base_model.model.{n}.lora_{part}.default" for n in "02" for part in "AB"}
    frozen = {f"base_model.model.{n}.base_layer" for n in "02"}
    got = matrices(recorded)
    assert {key[3] for key in got if key[4] == "w"} == adapters | frozen
    # The first frozen layer takes what needs no gradient: no GEMM reads its dy.
    assert {key[3] for key in got if key[4] == "dy"} == adapters | {"base_model.model.2.base_layer"}
    assert gradients_follow(got) == adapters
    assert got[0, 0, 0, "base_model.model.0.lora_A.default", "w"].shape == (2, 6)
    assert got[0, 0, 0, "base_model.model.0.lora_B.default", "x"].shape == (5, 2)
