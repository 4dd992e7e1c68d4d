"""Gradient accumulation: the micro-batch is in the key, the weight is taken once a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn


@pytest.mark.captures(
    case="gradient accumulation",
    how="module hooks; a micro-batch is what one backward covers",
    sees="x and dy of each micro-batch under its own number, w once an optimizer step",
    limits="",
)
def test_microbatches(attach: Any, recorded: Any) -> None:
    torch.manual_seed(0)
    net = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = []
    with attach(net, raw_every=1):
        for _ in range(2):
            for _ in range(3):
                net(torch.randn(5, 6)).square().mean().backward()
            assert net.weight.grad is not None
            gradients.append(net.weight.grad.numpy().copy())
            optimizer.step()
            optimizer.zero_grad()
    assert recorded.keys() == [
        key
        for step in (0, 1)
        for microbatch in (0, 1, 2)
        for key in (
            f"{step}/{microbatch}/0 forward Linear.x",
            *([f"{step}/0/0 forward Linear.w"] if microbatch == 0 else []),
            f"{step}/{microbatch}/0 backward Linear.dy",
        )
    ]
    assert [row["n_microbatches"] for row in recorded.rows("steps")] == [3, 3]
    for step, gradient in enumerate(gradients):
        total = np.zeros((4, 6))
        for microbatch in (0, 1, 2):
            x, dy = (
                np.array([r["values"] for r in recorded.rows("values", step=step, microbatch=microbatch, tensor=t)])
                for t in ("x", "dy")
            )
            total += dy.T @ x
        np.testing.assert_allclose(total, gradient, rtol=1e-5, atol=1e-7)
