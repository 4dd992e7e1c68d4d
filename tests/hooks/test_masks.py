"""Which mask holds when, and which tensors it fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from fp8debug.errors import UsageError
from fp8debug.hooks.masks import RowMasks
from fp8debug.replay import Moment

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

X = torch.arange(24.0).reshape(6, 4)


def mask(*rows: int, n: int = 6) -> torch.Tensor:
    valid = torch.zeros(n, dtype=torch.bool)
    valid[list(rows)] = True
    return valid


def n_valid(recorded: Recorded, tensor: str) -> dict[tuple[int, int], tuple[int, int]]:
    """(step, micro-batch) -> elements in valid and padding rows, evaluation left out."""
    found: dict[tuple[int, int], dict[str, int]] = {}
    for row in recorded.rows("tensors", tensor=tensor):
        if row["pass"] != "eval":
            found.setdefault((row["step"], row["microbatch"]), {})[row["row_class"]] = row["n"]
    return {key: (n["valid"], n["padding"]) for key, n in found.items() if "valid" in n}


def test_a_mask_holds_for_its_microbatch_gradients_included(attach: Attach, recorded: Recorded) -> None:
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with attach(layer, recipes=["current"]) as session:
        for step in range(2):
            for microbatch in range(3):
                if microbatch < 2:
                    session.mask(mask(*range(1 + step + 2 * microbatch)))
                layer.eval()(X)
                layer.train()(X).square().sum().backward()
            optimizer.step()
    assert n_valid(recorded, "x") == {(0, 0): (4, 20), (0, 1): (12, 12), (1, 0): (8, 16), (1, 1): (16, 8)}
    assert n_valid(recorded, "dy") == {(0, 0): (3, 15), (0, 1): (9, 9), (1, 0): (6, 12), (1, 1): (12, 6)}
    assert n_valid(recorded, "w") == {}
    first = recorded.row("tensors", tensor="x", step=0, microbatch=0, pass_="forward", row_class="padding")
    assert (first["shape"], first["amin"], first["amax"]) == ([5, 4], 4.0, 23.0)
    scales = {row["scale"] for row in recorded.rows("errors", tensor="x", step=0, microbatch=0)}
    assert len(scales) == 1  # of the whole


def test_a_rule_holds_until_another_is_given(attach: Attach, recorded: Recorded) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    asked = []

    def rule(layer: str, tensor: str, rows: int) -> torch.Tensor | None:
        asked.append((layer, tensor, rows))
        return mask(0, n=rows) if layer == "1" else None

    with attach(model, recipes=["current"], tensors=["x", "w", "y"]) as session:
        session.mask(rule)
        model(X[:5])
        session.mask(None)
        model(X)
    assert asked == [("0", "x", 5), ("0", "y", 5), ("1", "x", 5), ("1", "y", 5)]
    classes = [(r["layer"], r["tensor"], r["n"]) for r in recorded.rows("tensors") if r["row_class"] == "valid"]
    assert classes == [("1", "x", 4), ("1", "y", 4)]


def test_nonfinite_rows_keep_their_number_and_sums_their_elements(attach: Attach, recorded: Recorded) -> None:
    x = torch.tensor([[1.1, 2.2], [float("nan"), 1.0], [3.3, float("inf")], [0.3, 0.4]])
    layer = nn.Linear(2, 2)
    with attach(layer, recipes=["current"], tensors=["x"]) as session:
        session.mask(mask(0, 3, n=4))
        layer(x)
    valid = recorded.rows("tensors", row_class="valid")
    padding = recorded.rows("tensors", row_class="padding")
    assert [(r["n_rows_nonfinite"], r["first_nonfinite_row"]) for r in (*valid, *padding)] == [(0, None), (2, 1)]
    sums = {r["seq"]: r["sum_x2"] for r in recorded.rows("errors")}
    expected = float(x[[0, 3]].double().square().sum())
    assert sums[valid[0]["seq"]] == pytest.approx(expected, rel=1e-12)  # of FP32 values, not of BF16 ones


@pytest.mark.parametrize("given", [torch.ones(4), [True], "valid"])
def test_what_is_no_mask_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match="mask: got "):
        RowMasks().give(given)  # type: ignore[arg-type]


def test_shapes() -> None:
    moment = Moment(0, 0, 0, "forward")

    def rows(given: torch.Tensor, *shape: int) -> list[bool] | None:
        masks = RowMasks()
        masks.give(given)
        found = masks.of("fc", "x", moment, torch.zeros(shape))
        return None if found is None else found.tolist()

    two = torch.tensor([[True, True, False], [True, False, False]])  # (B, T)
    assert rows(two, 2, 3, 8) == rows(two, 6, 8) == [True, True, False, True, False, False]
    assert rows(two, 3, 2, 8) == [True, True, True, False, False, False]  # sequence first
    assert rows(two, 5, 8) is rows(two, 6) is None


def test_masks_that_fit_nothing_are_said(attach: Attach) -> None:
    layer = nn.Linear(4, 3)
    with attach(layer) as session:
        session.mask(mask(0, n=5))
        layer(X)
        summary = session.close()
    assert any("session.mask" in problem for problem in summary.problems)
