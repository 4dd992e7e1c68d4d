"""A training whose steps nobody can see says so, and only such a one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("ends_steps", ["nobody", "session", "optimizer before the rest"])
def test_micro_batches_without_an_optimizer(ends_steps: str, attach: Any, recorded: Any) -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with attach(net) as session:
        for batch in range(3):
            net(torch.ones(2, 4)).square().mean().backward()
            if ends_steps == "session":
                session.step()
            if ends_steps == "optimizer before the rest" and batch == 0:
                optimizer.step()
    text = "no optimizer stepped, so 3 micro-batches count as one step: call session.step() after each step"
    expected = [text] if ends_steps == "nobody" else []
    assert session.close().problems == expected
    assert [(e["kind"], e["message"]) for e in recorded.rows("events")] == [("assumption", text) for text in expected]
