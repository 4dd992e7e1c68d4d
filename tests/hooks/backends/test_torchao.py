"""torchao's float8: what the GEMMs read, seen beside what they were given."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fp8debug
from fp8debug.analysis import Run, open_run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 16, bias=False)).bfloat16()


def converted(recipe: str, model: nn.Module) -> nn.Module:
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(recipe), emulate=True)
    result: nn.Module = convert_to_float8_training(model, config=config)
    return result


def train(model: nn.Module) -> list[float]:
    """Two steps of two micro-batches; inputs do not depend on what else draws numbers."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(2):
        for _ in range(2):
            loss = model(torch.randn(4, 8, 32, generator=generator).bfloat16()).float().square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def matrix(run: Run, tensor: str, layer: str, dtype: str = "bfloat16") -> np.ndarray[Any, np.dtype[np.float64]]:
    """Raw values of step 1, micro-batch 0."""
    rows = run.con.execute(
        "select v.values from values v join tensors t using (segment, rank, seq) where v.step = 1 and v.microbatch = 0 "
        "and v.tensor = ? and v.layer = ? and t.dtype = ? and v.pass <> 'eval' order by v.row",
        [tensor, layer, dtype],
    ).fetchall()
    return np.array([row[0] for row in rows])


@pytest.mark.captures(
    case="torchao float8",
    how="module hooks, and a dispatch mode around each Float8Linear's own GEMMs",
    sees="x, w, dy in high precision, and the payload of each: codes, scale, format, what they lost",
    limits="rowwise: payloads of fprop and dgrad, not those of wgrad, which are scaled along the other axis",
)
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise"])
def test_payloads(recipe: str, tmp_path: Path) -> None:
    bare = train(converted(recipe, net()))
    model = converted(recipe, net())
    with fp8debug.attach(model, every=1, raw_every=1, tensors="x,w,dy,dw", run_dir=tmp_path / "run", quiet=True):
        assert train(model) == bare
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    gradient = "E5M2" if recipe == "tensorwise" else "E4M3"
    with open_run(tmp_path / "run") as run:
        assert run.con.execute("from events").fetchall() == []
        counts = run.con.execute("select tensor, fmt, count(*) from payloads group by all order by all").fetchall()
        assert counts == [("dy", gradient, 8), ("w", "E4M3", 4), ("x", "E4M3", 8)]
        for layer in ("0", "2"):
            for tensor, fmt in (("x", "E4M3"), ("w", "E4M3"), ("dy", gradient)):
                check_payload(run, layer, tensor, fmt, rowwise=recipe == "rowwise")
            product = matrix(run, "dy", layer).T @ matrix(run, "x", layer)
            exact = matrix(run, "dw", layer)
            # The GEMM itself reads FP8: the product of the operands before it is near, not equal.
            assert np.abs(product - exact).max() / np.abs(exact).max() < 0.1


def check_payload(run: Run, layer: str, tensor: str, fmt: str, *, rowwise: bool) -> None:
    """The codes are torch's own casts of the recorded values at the scale that follows from their amax."""
    dtype = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}[fmt]
    values = torch.from_numpy(matrix(run, tensor, layer)).float()
    amax = values.abs().amax(dim=1, keepdim=True) if rowwise else values.abs().amax()
    limit = torch.finfo(dtype).max
    # torchao divides in float64 and rounds the scale once.
    scale = (limit / amax.double().clamp(min=1e-12)).float()
    if rowwise:  # its preset rounds scales down to powers of two
        scale = (scale.view(torch.int32) & 0x7F800000).view(torch.float32)
    codes = (values * scale).clamp(-limit, limit).to(dtype).float()
    found, counts = codes.unique(return_counts=True)
    recorded = run.con.execute(
        "select value, sum(count) from histograms where layer = ? and tensor = ? and step = 1 and microbatch = 0 "
        "and counted = 'payload' group by value order by value",
        [layer, tensor],
    ).fetchall()
    merged: dict[float, int] = {}
    for value, count in recorded:  # -0 and +0 are told apart there
        merged[value + 0.0] = merged.get(value + 0.0, 0) + count
    assert merged == dict(zip(found.tolist(), counts.tolist(), strict=True))
    lost = (values.double() - codes.double() / scale.double()).square().sum()
    query = "select sum_err2 from errors where layer = ? and tensor = ? and step = 1 and microbatch = 0"
    ((sum_err2,),) = run.con.execute(f"{query} and source = 'payload'", [layer, tensor]).fetchall()
    assert sum_err2 == pytest.approx(lost.item(), rel=1e-5)


@pytest.mark.captures(
    case="torchao float8",
    how="convert_to_float8_training after attach",
    sees="the converted layers, under their names, from the next forward on",
    limits="said, and an event `reattached`",
)
def test_conversion_after_attach(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    with fp8debug.attach(model, every=1, run_dir=tmp_path / "run") as session:
        train(converted("tensorwise", model))
    assert session.close().problems == []
    assert "0, 2" in capsys.readouterr().err
    with open_run(tmp_path / "run") as run:
        assert run.con.execute("select kind, layer from events order by layer").fetchall() == [
            ("reattached", "0"),
            ("reattached", "2"),
        ]
        assert run.con.execute("select count(*) from payloads").fetchall() == [(20,)]


@pytest.mark.captures(
    case="torchao float8",
    how="inside torch.compile: operators in the graph",
    sees="x, w, dy in high precision",
    limits="no payload: the casts are inside the graph; said, and an event not_captured for each layer. "
    "Compilers may fuse otherwise around what is recorded: losses can differ from a bare run's in their last bits",
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_casts_inside_a_graph_are_said_to_be_unseen(tmp_path: Path) -> None:
    """Not that the layers run in BF16, as they would do without the conversion."""
    torch._dynamo.reset()
    model = converted("tensorwise", net())
    compiled: Any = torch.compile(model, backend="aot_eager")
    with fp8debug.attach(model, every=1, run_dir=tmp_path / "run", quiet=True) as session:
        train(compiled)
        problems = session.close().problems
    torch._dynamo.reset()  # a graph that is left would be made again for the next test's capture, which is an event
    unseen = (
        "the FP8 operands stay inside a graph of torch.compile: x, w and dy are recorded before the cast, no payload"
    )
    assert problems == [f"0, 2: {unseen}"]
    with open_run(tmp_path / "run") as run:
        events = run.con.execute("select kind, layer, message from events order by layer").fetchall()
        assert events == [("not_captured", layer, unseen) for layer in ("0", "2")]
        assert run.con.execute("select distinct tensor from tensors order by 1").fetchall() == [("dy",), ("w",), ("x",)]
