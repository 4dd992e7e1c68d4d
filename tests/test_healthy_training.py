"""Healthy trainings raise no alarm: four GPTs, 120 steps, judged under three recipes."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

import fp8debug


@pytest.mark.timeout(240)
@pytest.mark.parametrize("activation", ["gelu", "relu", "relu2", "swiglu"])
def test_healthy_gpt_has_no_candidate(
    train_gpt: ModuleType, false_alarms: ModuleType, activation: str, tmp_path: Path
) -> None:
    training = false_alarms.Training(microbatches=1)
    loss = false_alarms.record(train_gpt, activation, tmp_path / "run", training)
    assert loss < 3.6, "the model must really have learnt: an untrained one stands at ln 256 = 5.5"
    n_operands = 3 * (training.layers * (5 if activation == "swiglu" else 4) + 1)
    with fp8debug.open_run(tmp_path / "run") as run:
        judged = dict(
            run.con.execute(
                "select recipe, count(distinct (layer, tensor)) from evidence where not alternate group by recipe"
            ).fetchall()
        )
        candidates = dict(run.con.execute("select recipe, count(*) from candidates group by recipe").fetchall())
    assert judged == dict.fromkeys(false_alarms.RECIPES, n_operands)
    assert candidates.get("current", 0) == 0
    for recipe in false_alarms.RECIPES[1:]:
        assert candidates.get(recipe, 0) <= 0.02 * n_operands, recipe
    found = false_alarms.alarms(tmp_path / "run")
    assert found.n_operands == n_operands
    assert found.n_flagged["current"] == 0
    assert all(n <= 0.02 * n_operands for n in found.n_flagged.values()), found
