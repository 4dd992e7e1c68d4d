"""C20: a loss in FP8 goes wrong, and the report has nothing but its curve: no layer may be named from that."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fp8debug
from fp8debug.analysis.bundle import Bundle, collect

STEPS, LAYERS, WIDTH = 8, 4, 64


def train(path: Path, recipe: str, std: float) -> None:
    """A toy MLP in emulated FP8."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=std)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    options: dict[str, Any] = {"run_dir": path, "every": 1, "engine": "torch", "quiet": True}
    with fp8debug.attach(model, recipes=[recipe], emulate=recipe, detail=(), **options):
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.randn(32, WIDTH)).square().mean().backward()
            optimizer.step()


def bundled(path: Path, folder: Path) -> Bundle:
    folder.mkdir()
    with fp8debug.open_run(path) as run:
        return collect(run, folder, limit_bytes=25_000_000)


def test_a_loss_alone_names_nobody_and_tensors_name_the_layer(tmp_path: Path) -> None:
    """Each layer multiplies by 16: the fixed scale clips x of the layers behind the second."""
    train(tmp_path / "run", "static:scale=1", std=2.0)
    found = bundled(tmp_path / "run", tmp_path / "with_tensors")
    assert found.verdict.startswith("3 x and 1 more: ") and "clipped" in found.verdict
    assert found.moment.step == 0 and set(found.moment.operands) >= {("3", "x"), ("2", "x")}
    assert not {("0", "x"), ("0", "w"), ("1", "x")} & set(found.moment.operands)
    for table in (path for path in (tmp_path / "run").iterdir() if path.is_dir() and path.name != "steps"):
        shutil.rmtree(table)
    alone = bundled(tmp_path / "run", tmp_path / "loss_alone")
    assert alone.verdict == (
        "insufficient evidence: no tensor was recorded; enable capture for these layers: 0, 1, 2, 3"
    )
    assert alone.moment.operands == ()


def test_a_healthy_one_names_nobody(tmp_path: Path) -> None:
    train(tmp_path / "run", "current", std=WIDTH**-0.5)
    found = bundled(tmp_path / "run", tmp_path / "bundle")
    assert found.verdict == "no finding above watch: what was recorded shows nothing wrong"
    assert found.moment.operands == ()
