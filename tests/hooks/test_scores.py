"""Benchmark scores that a training gives: `session.log(eval=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fp8debug.analysis.run import open_run
from fp8debug.errors import UsageError

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded


@pytest.mark.parametrize("options", [{}, {"every": 100, "trigger": "nan"}], ids=["plain", "flight recorder"])
def test_scores_by_task(attach: Attach, recorded: Recorded, options: dict[str, Any]) -> None:
    """Of the step under way, several calls in one step, tensors, and after the last step."""
    model = nn.Sequential(nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    with attach(model, **options) as session:
        session.log(eval={"before": 0.0})
        for step in range(3):
            model(torch.ones(2, 3)).sum().backward()
            if step == 1:
                session.log(loss=1.0, eval={"gsm8k": 0.25, "mmlu": torch.tensor(0.5)})
                session.log(eval={"code": 1})
            optimizer.step()
        session.log(eval={"gsm8k": 0.75})
    session.log(eval={"too late": 1.0})
    rows = recorded.rows("evals")
    expected = [(0, "before", 0.0), (1, "gsm8k", 0.25), (1, "mmlu", 0.5), (1, "code", 1.0), (2, "gsm8k", 0.75)]
    assert [(row["step"], row["task"], row["score"]) for row in rows] == expected
    assert {(row["segment"], row["rank"]) for row in rows} == {(0, 0)}
    with open_run(recorded.path) as run:
        assert run.sql("select step, task, score from evals order by unix_s, step").fetchall() == expected
        assert run.sql("select loss from steps where step = 1").fetchall() == [(1.0,)]


@pytest.mark.parametrize("given", [0.5, {1: 0.5}, {"gsm8k": "good"}, {"gsm8k": None}])
def test_what_is_no_score(attach: Attach, given: Any) -> None:
    session = attach(nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(UsageError, match=r"expected (scores by task|a number)"):
        session.log(eval=given)
    assert session.active
    session.close()
