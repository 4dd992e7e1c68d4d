"""`fp8debug attach --plan FILE --seed N` in real processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fp8debug.plans import Plan, PlanEntry, plan_text

if TYPE_CHECKING:
    from tests.cli.conftest import Place

TRAIN = """
import random
import numpy
import torch
from torch import nn

model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 16)
    loss = (model(x) - x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item().hex(), random.random(), numpy.random.rand())
"""


def test_a_plan_and_a_seed(place: Place, warm_python: Any) -> None:
    plan = Plan("delayed", (PlanEntry("2", "bf16"), PlanEntry("0", "current", "w"), PlanEntry("lm_head", "bf16")))
    place.write("plan.toml", plan_text(plan))
    place.write("train.py", TRAIN)

    def attach(*options: str, **variables: str) -> tuple[str, str]:
        ran = warm_python.run(
            place.folder, "-m", "fp8debug", "attach", *options, "--detail", "none", "train.py", **variables
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout, ran.stderr

    out, err = attach("--plan", "plan.toml", "--seed", "7", "--out", "run")
    line = "fp8debug: emulating delayed in 1 layer, 1 kept in high precision, 1 computing otherwise by the plan"
    assert f"{line}; the plan is about layers that are not here: 'lm_head'\n" in err
    manifest = json.loads((place.folder / "run" / "run.json").read_text())
    assert {layer["name"]: layer["emulated"] for layer in manifest["layers"]} == {"0": "delayed, w: current", "2": None}
    assert (manifest["options"]["plan"], manifest["options"]["seed"]) == ("plan.toml", 7)

    again, _ = attach("--out", "again", FP8DEBUG_PLAN="plan.toml", FP8DEBUG_SEED="7")
    assert again == out
    plain, _ = attach("--out", "plain", "--seed", "7")
    other, _ = attach("--out", "other", "--seed", "8")
    assert plain.split()[1:] == out.split()[1:]  # the emulation draws nothing
    assert plain.split()[0] != out.split()[0]
    assert all(a != b for a, b in zip(plain.split(), other.split(), strict=True))
