"""Models as they come: GPT-2, mixtures of experts in three spellings, nn.MultiheadAttention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from tests.hooks.backends.dispatch.conftest import Values
    from tests.hooks.conftest import Attach, Recorded

RAW: dict[str, Any] = {"tensors": ("x", "w", "dy"), "raw_every": 1, "every": 1, "recipes": ["current"], "detail": ()}
GRADIENT = ("x", "w", "dy", "y", "dx", "dw")


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, tie_word_embeddings=False)
    model: nn.Module = GPT2LMHeadModel(config).train()
    return model


@pytest.mark.captures(
    case="HF Conv1D, F.linear-only models, 3-D expert weights (`_grouped_mm`, bmm), einsum",
    how="`--backend dispatch`, or `auto` for the weights that module hooks would miss",
    sees="x, w, dy (y, dx, dw on request) of every GEMM that runs, named by the weight it reads",
    limits="weights that other kernels read (mv, convolutions, fused RNNs) take part in no GEMM and are not reported",
)
def test_gpt2_by_both_backends(attach: Attach, read_run: Callable[[Path], Recorded], tmp_path: Path) -> None:
    """Conv1D, bit for bit: the same values, histograms, scales and moments, whichever way they are reached."""
    ids = torch.randint(0, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    kept, losses = [], []
    for backend in ("modules", "dispatch"):
        torch.manual_seed(1)
        model, folder = gpt2(), tmp_path / backend
        torch.manual_seed(2)  # dropout
        with attach(model, run_dir=folder, backend=backend, **RAW | {"tensors": GRADIENT}):
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
        losses.append((loss.item(), *(p.grad for p in model.parameters())))
        run = read_run(folder)
        rows = run.rows("tensors")
        same = ("n", "n_zero", "n_nan", "amin", "amax", "dtype", "gemm_dtype", "precision_asked", "status", "placement")
        key = ("step", "microbatch", "call", "pass", "layer", "tensor")
        facts = {tuple(r[k] for k in key): tuple(r[k] for k in same) for r in rows}
        matrices: dict[Any, Any] = {}
        for row in run.rows("values"):
            matrices.setdefault(tuple(row[k] for k in key), []).append(row["values"])
        sums = {tuple(r[k] for k in (*key, "recipe", "fmt")): r["sum_err2"] for r in run.rows("errors")}
        kept.append((facts, matrices, sums, {r["name"]: r["kind"] for r in run.manifest["layers"]}))
    (facts, matrices, sums, kinds), (by_dispatch, other_matrices, other_sums, other_kinds) = kept
    assert len(facts) == 9 * 6
    assert by_dispatch == facts
    assert other_matrices == matrices
    assert other_sums == pytest.approx(sums, rel=1e-12)
    assert kinds["transformer.h.0.attn.c_attn"] == "Conv1D"
    tables = {"transformer.wte.weight", "transformer.wpe.weight"}
    assert {name: kind for name, kind in other_kinds.items() if name not in tables} == kinds
    assert losses[0][0] == losses[1][0]
    assert all(torch.equal(a, b) for a, b in zip(losses[0][1:], losses[1][1:], strict=True))


def mixtral(implementation: str) -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, num_experts_per_tok=2, head_dim=8,
    )  # fmt: skip
    config._experts_implementation = implementation
    model: nn.Module = MixtralForCausalLM(config).train()
    return model


@pytest.mark.parametrize("implementation", ["grouped_mm", "eager"])
def test_mixtral(
    implementation: str,
    attach: Attach,
    recorded: Recorded,
    values: Callable[[], Values],
    products: Callable[..., set[str]],
) -> None:
    """Each expert is a layer; one without tokens says so."""
    model = mixtral(implementation)
    with torch.no_grad():
        model.get_parameter("model.layers.0.mlp.gate.weight")[3] = 0
    router = model.get_submodule("model.layers.0.mlp.gate")
    router.register_forward_hook(lambda module, args, out: (out[0], out[1], out[2] % 3))  # none for the last expert
    ids = torch.randint(0, 32, (2, 9), generator=torch.Generator().manual_seed(0))
    with attach(model, **RAW | {"tensors": GRADIENT}) as session:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
    assert session.close().problems == []
    got = values()
    experts = {f"model.layers.{i}.mlp.experts.{p}[{e}]" for i in range(2) for p in ("gate_up_proj", "down_proj")
               for e in range(4)}  # fmt: skip
    without = {name for name in experts if name.startswith("model.layers.0") and name.endswith("[3]")}
    assert experts - without <= products(got)
    for i in range(2):
        for p in ("gate_up_proj", "down_proj"):
            name = f"model.layers.{i}.mlp.experts.{p}"
            gradient = model.get_parameter(name).grad
            assert gradient is not None
            for e in range(4):
                layer = f"{name}[{e}]"
                if layer in without:
                    assert not gradient[e].any()
                else:
                    assert torch.equal(torch.tensor(got[0, 0, 0, layer, "dw"], dtype=torch.float32), gradient[e])
    rows = {(r["layer"], r["tensor"]): r for r in recorded.rows("tensors")}
    for layer in without:
        row = rows[layer, "x"]
        assert (row["status"], row["n"], row["amax"], row["shape"][0]) == ("no_tokens", 0, None, 0)
    listed = {r["name"]: r for r in recorded.manifest["layers"]}
    assert experts <= listed.keys()
    assert all(listed[name]["matched"] and listed[name]["kind"] == "parameter" for name in experts)
    assert listed["model.layers.0.self_attn.q_proj"]["backend"] == "modules"


class Experts(nn.Module):
    """Batched experts, (E, K, N), as Llama 4 has them, and an einsum over all experts at once."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(3, 4, 6) / 2)
        self.every = nn.Parameter(torch.randn(3, 6, 4) / 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.bmm(x.expand(3, *x.shape), self.up).tanh()
        one: Tensor = torch.einsum("tk,ekn->etn", h[0], self.every)
        return one + torch.einsum("etk,ekn->etn", h, self.every)


def test_batched_experts(attach: Attach, values: Callable[[], Values]) -> None:
    torch.manual_seed(0)
    model = Experts()
    with attach(model, **RAW):
        model(torch.randn(5, 4)).square().sum().backward()
    got = values()
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None
        for e in range(3):
            use = (0, 0, 0, f"{name}[{e}]")
            total = got[*use, "dy"].T @ got[*use, "x"]
            if name == "every":  # the einsum whose experts are columns of one GEMM has one record: experts side by side
                whole = got[0, 0, 0, name, "dy"].T @ got[0, 0, 0, name, "x"]
                total = total + whole.reshape(3, 4, 6)[e]
            np.testing.assert_allclose(total, gradient[e].double().numpy().T, rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(got[*use, "w"], parameter[e].detach().double().numpy().T)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 4))
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.table)  # type: ignore[no-any-return]


def test_a_table_is_left_alone_after_a_while(attach: Attach, recorded: Recorded) -> None:
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    model, depths = Positions(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.out.register_forward_hook(lambda *_: depths.append(len(_get_current_dispatch_mode_stack())))
    with attach(model) as session:
        for _ in range(5):
            model(torch.randn(2, 8, 4)).sum().backward()
            optimizer.step()
    assert depths == [1, 1, 1, 0, 0]
    assert session.close().problems == []
    assert [(r["kind"], r["layer"]) for r in recorded.rows("events")] == [("assumption", "table")]


def test_multihead_attention(attach: Attach, values: Callable[[], Values], products: Callable[..., set[str]]) -> None:
    """It reads the weight of its output layer without calling it, and has another one that no module owns."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    with attach(model, **RAW | {"tensors": GRADIENT}) as session:
        model(x, x, x)[0].square().sum().backward()
    assert session.close().problems == []
    got = values()
    products(got)
    assert {key[3] for key in got} == {"in_proj_weight", "out_proj"}
    for name in ("in_proj_weight", "out_proj.weight"):
        use = (0, 0, 0, name.removesuffix(".weight"))
        gradient = model.get_parameter(name).grad
        assert gradient is not None
        np.testing.assert_allclose(got[*use, "dy"].T @ got[*use, "x"], gradient.double().numpy(), rtol=1e-4, atol=1e-5)


def test_a_shared_weight_goes_by_the_module_that_is_called(attach: Attach, recorded: Recorded) -> None:
    first, second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    with attach(nn.Sequential(first, nn.Tanh(), second), backend="dispatch") as session:
        second(first(torch.ones(2, 4))).sum().backward()
    assert session.close().problems == []
    assert {r["layer"] for r in recorded.rows("tensors", tensor="dy")} == {"0", "2"}


def test_weights_that_are_computed(attach: Attach, recorded: Recorded) -> None:
    """What a known module multiplies with is its weight, whatever it was made of."""
    layer = nn.Linear(4, 6)
    model = nn.Sequential(torch.nn.utils.parametrizations.weight_norm(layer))
    with attach(model, backend="dispatch") as session:
        model(torch.ones(2, 4)).sum().backward()
    assert session.close().problems == []
    rows = {r["tensor"]: r for r in recorded.rows("tensors", layer="0")}
    assert rows["w"]["amax"] == layer.weight.abs().max().item()
    assert rows["dy"]["shape"] == [2, 6]


def test_precision_that_differs(attach: Attach, recorded: Recorded) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return functional.linear(x, self.w)

    model = Net()
    with attach(model):
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                y = model(torch.randn(2, 4))
            y.sum().backward()
    (event,) = recorded.rows("events", layer="w")
    assert event["kind"] == "precision_differs"
    assert event["message"] == "asked to run in bfloat16, ran in float32"
    assert {r["gemm_dtype"] for r in recorded.rows("tensors")} == {"float32"}
