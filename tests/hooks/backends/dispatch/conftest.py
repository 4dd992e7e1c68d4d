"""What every recorded GEMM must satisfy, from raw values alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest

if TYPE_CHECKING:
    from tests.hooks.conftest import Recorded

Array = npt.NDArray[np.float64]
Values = dict[tuple[int, int, int, str, str], Array]
"""(step, micro-batch, call, layer, tensor) -> rows; of a recomputed pass the forward's stay."""


def values_of(run: Recorded) -> Values:
    kept: dict[tuple[Any, ...], dict[int, list[list[float]]]] = defaultdict(dict)
    for row in run.rows("values"):
        if row["pass"] != "recompute":
            key = (row["step"], row["microbatch"], row["call"], row["layer"], row["tensor"])
            kept[key].setdefault(row["seq"], []).append(row["values"])
    assert all(len(records) == 1 for records in kept.values()), "no record twice"
    return {key: np.array(next(iter(records.values())), np.float64) for key, records in kept.items()}


def check_products(values: Values, rtol: float = 1e-5) -> set[str]:
    """y = x w^T (bias apart), dx = dy w, dw = dy^T x for all that were recorded; returns the layers with all three."""
    proven = set()
    for (step, microbatch, call, layer, tensor), dy in values.items():
        if tensor != "dy":
            continue
        use = step, microbatch, call, layer
        w = values[step, 0, 0, layer, "w"]
        x = values[*use, "x"]
        found = {t: values[*use, t] for t in ("y", "dx", "dw") if (*use, t) in values}
        wanted = {"y": x @ w.T, "dx": dy @ w, "dw": dy.T @ x}
        for name, got in found.items():
            exact = wanted[name]
            if name == "y":  # a bias adds the same row everywhere
                got, exact = got - got[:1], exact - exact[:1]
            np.testing.assert_allclose(got, exact, rtol=0, atol=rtol * max(abs(exact).max(), 1e-30) * 10)
        assert abs(wanted["dw"]).max() > 0
        if found.keys() == wanted.keys():
            proven.add(layer)
    return proven


def check_weight_gradients(values: Values, gradients: dict[str, Array], rtol: float = 1e-5) -> None:
    """The gradient of each weight, (N, K), is the sum of dy^T x over micro-batches and calls of the only step."""
    for layer, gradient in gradients.items():
        uses = [key for key in values if key[3:] == (layer, "dy")]
        total = sum(values[key].T @ values[*key[:4], "x"] for key in uses)
        assert uses, layer
        np.testing.assert_allclose(total, gradient, rtol=0, atol=rtol * abs(gradient).max() * 10, err_msg=layer)


@pytest.fixture
def values(recorded: Recorded) -> Callable[[], Values]:
    """All raw values of the run."""
    return lambda: values_of(recorded)


@pytest.fixture
def products() -> Callable[..., set[str]]:
    """`check_products`."""
    return check_products


@pytest.fixture
def weight_gradients() -> Callable[..., None]:
    """`check_weight_gradients`."""
    return check_weight_gradients
