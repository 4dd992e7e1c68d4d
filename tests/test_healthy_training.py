"""Healthy trainings raise no alarm: four GPTs, 120 steps of two micro-batches, judged under three recipes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch

import fp8debug

STEPS, MICROBATCHES, N_LAYERS = 120, 2, 6
RECIPES = ("current", "delayed:amax_history_len=16", "delayed")


def record_training(train_gpt: ModuleType, activation: str, run_dir: Path) -> float:
    """Train with capture in every second step; returns the last step's loss."""
    zero_init = activation == "relu2"
    model = train_gpt.build_model(activation, zero_init=zero_init, d=64, seq=64, layers=N_LAYERS)
    optimizer = torch.optim.AdamW(model.parameters())
    data = train_gpt.batches(train_gpt.load_text(2_000_000), 8, 64, seed=0)
    with fp8debug.attach(model, every=2, detail=(), run_dir=run_dir, recipes=RECIPES, quiet=True):
        for step in range(STEPS):
            for group in optimizer.param_groups:
                group["lr"] = train_gpt.lr_at(step, STEPS, 1e-3)
            for _ in range(MICROBATCHES):
                loss = train_gpt.loss_of(model, *next(data)) / MICROBATCHES
                loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return float(loss.detach()) * MICROBATCHES


@pytest.mark.timeout(240)
@pytest.mark.parametrize("activation", ["gelu", "relu", "relu2", "swiglu"])
def test_healthy_gpt_has_no_candidate(train_gpt: ModuleType, activation: str, tmp_path: Path) -> None:
    loss = record_training(train_gpt, activation, tmp_path / "run")
    assert loss < 3.6, "the model must really have learnt: an untrained one stands at ln 256 = 5.5"
    n_operands = 3 * (N_LAYERS * (5 if activation == "swiglu" else 4) + 1)
    with fp8debug.open_run(tmp_path / "run") as run:
        judged = dict(
            run.con.execute(
                "select recipe, count(distinct (layer, tensor)) from evidence where not alternate group by recipe"
            ).fetchall()
        )
        candidates = dict(run.con.execute("select recipe, count(*) from candidates group by recipe").fetchall())
    assert judged == dict.fromkeys(RECIPES, n_operands)
    assert candidates.get("current", 0) == 0
    for recipe in RECIPES[1:]:
        assert candidates.get(recipe, 0) <= 0.02 * n_operands, recipe
