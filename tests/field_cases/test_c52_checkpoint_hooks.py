"""C52: hooks fire again when activation checkpointing recomputes a forward, and not for every layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fp8debug

if TYPE_CHECKING:
    from tests.field_cases.conftest import Opened


def train(
    body: nn.Module, use: Callable[..., Any], run_dir: Path, *, reentrant: bool, preserve: bool = True, steps: int = 2
) -> None:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
    with fp8debug.attach(body, run_dir=run_dir, every=1, engine="torch", quiet=True, recipes=["current"]):
        for step in range(steps):
            for microbatch in range(2):
                x = torch.randn(4, 8, generator=torch.Generator().manual_seed(2 * step + microbatch)).requires_grad_()
                y: Tensor = checkpoint(use, x, use_reentrant=reentrant, preserve_rng_state=preserve)
                y.sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.captures(
    case="activation checkpointing, both kinds",
    how="module hooks; a forward inside a backward is a recomputation",
    sees="pass = forward or recompute, dy once; x of the recomputation against that of the forward, bit for bit",
    limits="without reentrant checkpointing torch stops before the last layer of a block: no recompute record of it",
)
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_one_forward_one_recompute_one_gradient(reentrant: bool, tmp_path: Path, opened: Opened) -> None:
    body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    train(body, body, tmp_path / "run", reentrant=reentrant)
    run = opened()
    counts = run.sql(
        """
        select layer, tensor, pass, count(*) from tensors where tensor <> 'w' and step = 1 and microbatch = 1
        group by all order by all
        """
    ).fetchall()
    last = [("2", "x", "recompute", 1)] if reentrant else []
    assert counts == [
        ("0", "dy", "backward", 1), ("0", "x", "forward", 1), ("0", "x", "recompute", 1),
        ("2", "dy", "backward", 1), ("2", "x", "forward", 1), *last,
    ]  # fmt: skip
    assert run.sql("from events").fetchall() == []


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("preserve", [True, False], ids=["preserved", "drawn anew"])
def test_dropout_that_draws_anew_is_said(reentrant: bool, preserve: bool, tmp_path: Path, opened: Opened) -> None:
    """The first layer stands before the dropout, the second behind it, and both are used twice."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    body = nn.ModuleList([first, second])

    def use(x: Tensor) -> Tensor:
        for _ in range(2):
            x = second(nn.functional.dropout(first(x).tanh(), 0.5)).tanh()
        return x

    train(body, use, tmp_path / "run", reentrant=reentrant, preserve=preserve)
    run = opened()
    events = run.sql(
        "select layer, tensor, step, message from events where kind = 'recompute_differs' order by layer"
    ).fetchall()
    if preserve:
        assert events == []
    else:
        assert [event[:3] for event in events] == [("0", "x", 0), ("1", "x", 0)]
        assert "not bit for bit that of the forward" in events[0][3]
    # Neither histories nor summaries count the second pass.
    assert run.sql("select distinct n_records from layer_summary where tensor = 'x'").fetchall() == [(8,)]
