"""What was recorded, as matrices, and the proof that operands and their keys are right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

if TYPE_CHECKING:
    from tests.hooks.conftest import Recorded

Key = tuple[int, int, int, str, str]
"""step, micro-batch, call, layer, tensor"""
Matrices = dict[Key, npt.NDArray[np.float64]]


def raw_matrices(run: Recorded, rank: int = 0) -> Matrices:
    """Raw values of the forward and backward passes."""
    rows: dict[Key, list[list[float]]] = defaultdict(list)
    for row in run.rows("values", rank=rank):
        rows[row["step"], row["microbatch"], row["call"], row["layer"], row["tensor"]].append(row["values"])
    return {key: np.array(values) for key, values in rows.items()}


def check_gradients(got: Matrices, unit: float = 2.0**-23) -> set[str]:
    """Assert that the sum of `dy.T @ x` over the calls of a layer is its `dw`; the layers that had one.

    Args:
        unit: relative rounding of the GEMM's result.
    """
    layers = set()
    for (step, microbatch, _, layer, tensor), dw in got.items():
        if tensor != "dw":
            continue
        exact, size = np.zeros_like(dw), np.zeros_like(dw)
        for call in range(9):
            if (step, microbatch, call, layer, "dy") in got:
                dy, x = (got[step, microbatch, call, layer, operand] for operand in ("dy", "x"))
                exact, size = exact + dy.T @ x, size + abs(dy).T @ abs(x)
        assert (abs(dw - exact) <= 4 * unit * size).all(), (step, microbatch, layer)
        assert (abs(exact) > 40 * unit * size).any(), "not all of it is rounding"
        layers.add(layer)
    return layers


@pytest.fixture
def matrices() -> Callable[..., Matrices]:
    return raw_matrices


@pytest.fixture
def gradients_follow() -> Callable[..., set[str]]:
    """`check_gradients`: layers whose recorded dw follows from what was recorded of dy and x."""
    return check_gradients


@pytest.fixture
def everything() -> dict[str, Any]:
    """Options: every tensor, its raw values at every step."""
    return {"tensors": ("x", "w", "dy", "y", "dx", "dw"), "raw_every": 1}
