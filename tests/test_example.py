"""The example training: what others rely on, and that the planted fault is what its docstring says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def test_it_knows_nothing_of_fp8debug(repository: Path) -> None:
    tree = ast.parse((repository / "examples" / "train_gpt.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name.startswith("fp8debug")]


@pytest.mark.parametrize(("activation", "count"), [("gelu", 17), ("relu", 17), ("relu2", 17), ("swiglu", 21)])
def test_models_have_the_linears_the_docstring_counts(train_gpt: ModuleType, activation: str, count: int) -> None:
    model = train_gpt.build_model(activation)
    assert len(linears(model)) == count
    assert 0.8e6 < sum(p.numel() for p in model.parameters()) < 1.0e6


def test_zero_init_zeroes_only_the_projections_into_the_residual(train_gpt: ModuleType) -> None:
    zero = {name for name, m in linears(train_gpt.build_model("relu2", zero_init=True)).items() if not m.weight.any()}
    assert zero == {f"blocks.{i}.{name}" for i in range(4) for name in ("proj", "fc2")}


def test_unknown_activation_is_refused(train_gpt: ModuleType) -> None:
    with pytest.raises(ValueError, match="'tanh': expected one of gelu, relu, relu2, swiglu"):
        train_gpt.build_model("tanh")


def test_text_is_this_pythons_own_and_batches_repeat(train_gpt: ModuleType) -> None:
    text = train_gpt.load_text()
    assert text.dtype == torch.uint8 and len(text) > 4_000_000
    source = bytes(text.tolist()[:2_000_000])
    assert b"abstract base classes" in source.lower() and b"\x00" not in source
    inputs, targets = next(train_gpt.batches(text, 3, 17, seed=5))
    again, _ = next(train_gpt.batches(text, 3, 17, seed=5))
    assert inputs.shape == targets.shape == (3, 17)
    assert torch.equal(inputs, again) and torch.equal(inputs[:, 1:], targets[:, :-1])


def test_planted_outlier_leaves_the_output_bit_equal_and_outlives_training(train_gpt: ModuleType) -> None:
    text = train_gpt.load_text(500_000)
    tokens, targets = next(train_gpt.batches(text, 4, 64, seed=0))
    healthy = train_gpt.build_model(seq=64)
    planted = train_gpt.build_model(seq=64, planted_outlier=True)
    assert torch.equal(
        train_gpt.loss_of(healthy, tokens, targets),
        train_gpt.loss_of(planted, tokens, targets),
    )

    channel, factor = train_gpt.PLANTED_CHANNEL, train_gpt.PLANTED_FACTOR
    weights = {name: linears(planted)[name].weight for name in train_gpt.PLANTED_LAYERS}
    planted_columns = {name: weight[:, channel].detach().clone() for name, weight in weights.items()}
    optimizer = torch.optim.AdamW(planted.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(3):
        train_gpt.loss_of(planted, tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in weights.items():
        assert torch.equal(weight[:, channel], planted_columns[name])
        assert not torch.equal(weight[:, channel + 1], linears(healthy)[name].weight[:, channel + 1])
    norms = planted.blocks[1].ln2.weight, planted.blocks[2].ln1.weight
    for gain in norms:
        assert gain[channel] == factor
        others = torch.cat([gain[:channel], gain[channel + 1 :]])
        assert others.max() < 1.1


def test_training_runs_and_learns(repository: Path, tmp_path: Path, warm_python: Any) -> None:
    command = [str(repository / "examples" / "train_gpt.py"), "--steps", "21", "--batch", "4"]
    done = warm_python.run(tmp_path, *command, "--seq", "64", "--accumulate", "2")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["step", "0"], ["step", "10"], ["step", "20"]]
    losses = [float(re.fullmatch(r"step \d+ loss (\d+\.\d{4})", line)[1]) for line in lines[:3]]  # type: ignore[index]
    assert losses[0] == pytest.approx(5.5, abs=0.2)
    assert losses[2] < 4.2
    assert lines[3].startswith("validation loss ")
