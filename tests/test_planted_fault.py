"""From fault to proof: a planted outlier is named first, the plan keeps it alone out, and that brings the loss back."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import fp8debug
from fp8debug.analysis.compare.curve import Curve, make_curve
from fp8debug.analysis.diagnosis import diagnose
from fp8debug.analysis.remedies import plan_of, search
from fp8debug.analysis.verification.judge import judge
from fp8debug.analysis.verification.tail import tail_gap
from fp8debug.plans import Plan

RECIPE = "delayed"
STEPS, BATCH, SEQ, SIZE = 64, 16, 32, {"layers": 2, "d": 64, "heads": 2}


def train(
    example: ModuleType, fault: str, *, seed: int = 0, emulated: Plan | None = None, run_dir: Path | None = None
) -> Curve:
    """Train with a growing outlier, as the example's own `main` does; the losses."""
    data = example.batches(example.load_text(2_000_000), BATCH, SEQ, seed)
    model = example.build_model(seq=SEQ, seed=seed, **SIZE)
    outlier = example.OutlierChannel(model, example.GROWING_LAYERS[fault])
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))
    losses: list[float] = []
    with (
        nullcontext()
        if run_dir is None
        else fp8debug.attach(model, run_dir=run_dir, every=6, recipes=RECIPE, detail=("channels",), quiet=True),
        nullcontext() if emulated is None else fp8debug.emulate(model, plan=emulated, quiet=True),
    ):
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = example.lr_at(step, STEPS, 2e-3)
            outlier.grow(step / STEPS)
            loss = example.loss_of(model, *next(data))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
    return make_curve(fault, range(STEPS), losses)


@pytest.fixture(scope="module")
def losses_of_seeds(train_gpt: ModuleType, once: Any) -> list[float]:
    """Last losses of three healthy trainings: an outlier that is compensated changes none of them."""

    def make(folder: Path) -> None:
        curves = [train(train_gpt, "head", seed=seed) for seed in range(3)]
        (folder / "losses.json").write_text(json.dumps([float(curve.loss[-STEPS // 4 :].mean()) for curve in curves]))

    losses: list[float] = json.loads((once("planted-fault-seeds", make) / "losses.json").read_text())
    return losses


@pytest.mark.parametrize("fault", ["head", "middle"])
def test_a_planted_fault_is_named_kept_out_and_judged_by_the_loss(
    train_gpt: ModuleType, losses_of_seeds: list[float], fault: str, tmp_path: Path
) -> None:
    layer = train_gpt.GROWING_LAYERS[fault]
    baseline = train(train_gpt, fault, run_dir=tmp_path / "run")
    with fp8debug.open_run(tmp_path / "run") as run:
        first, *_ = findings = diagnose(run)
        plan = plan_of(run, search(run, recipe=RECIPE))
    assert first.severity == "error"
    assert [(place.layer, place.tensor) for place in first.places] == [(layer, "x")]
    assert {name for finding in findings if finding.severity == "error" for name in finding.layers} == {layer}
    assert plan.recipe == RECIPE and {entry.layer for entry in plan.entries} == {layer}

    recipe = tail_gap(baseline, train(train_gpt, fault, emulated=Plan(RECIPE)))
    mended = tail_gap(baseline, train(train_gpt, fault, emulated=plan))
    judgement = judge(recipe, mended, losses_of_seeds)
    assert judgement.noise.spread is not None and recipe.gap is not None
    if fault == "head":
        assert recipe.gap > 5 * judgement.noise.spread
        assert judgement.verdict == "recovered" and judgement.recovered is not None and judgement.recovered > 0.8
    else:
        assert judgement.verdict == "no_effect"
