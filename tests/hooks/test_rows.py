"""What a row says of a tensor with zeros, NaN and Inf, by either engine, counted by hand."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

INF, NAN = math.inf, math.nan
ENGINES = pytest.mark.parametrize("engine", ["torch", "numba"])
AUTOCAST = pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])

# Exact in BF16, so that autocast changes nothing.
X = [
    [1.0, -0.0, 0.0, 2.0, -3.0],
    [NAN, 0.5, INF, 0.0, -0.0],
    [-0.25, -0.25, 1.0, 1.0, 1.0],
    [-INF, INF, NAN, NAN, 448.0],
]


@ENGINES
@AUTOCAST
def test_counts(engine: str, autocast: bool, attach: Attach, recorded: Recorded) -> None:
    layer = nn.Linear(5, 3, bias=False)
    with torch.no_grad():
        layer.weight.zero_()[2, 1] = -INF
    with attach(layer, engine=engine), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        layer(torch.tensor(X))
    x, w = recorded.row("tensors", tensor="x"), recorded.row("tensors", tensor="w")
    expected = {
        "shape": [4, 5],
        "status": "ok",
        "n": 20,
        "n_zero": 4,
        "n_neg_zero": 2,
        "n_nan": 3,
        "n_posinf": 2,
        "n_neginf": 1,
        "n_rows_nonfinite": 2,
        "first_nonfinite_row": 1,
        "amin": 0.25,
        "amax": 448.0,
    }
    assert {name: x[name] for name in expected} == expected
    expected = {"n": 15, "n_zero": 14, "n_neg_zero": 0, "n_neginf": 1, "n_rows_nonfinite": 1, "first_nonfinite_row": 2}
    assert {name: w[name] for name in expected} == expected
    assert (w["amin"], w["amax"]) == (None, 0.0)
    values = {(h["value"], math.copysign(1, h["value"])): h["count"] for h in recorded.rows("histograms", seq=x["seq"])}
    assert values == {
        (0.0, 1): 2, (0.0, -1): 2, (1.0, 1): 4, (2.0, 1): 1, (-3.0, -1): 1, (0.5, 1): 1, (-0.25, -1): 2, (448.0, 1): 1,
    }  # fmt: skip


@ENGINES
@AUTOCAST
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "health"])
def test_nonfinite_values_are_seen_in_every_step(
    sampled: bool, autocast: bool, engine: str, attach: Attach, recorded: Recorded
) -> None:
    """Also where no histogram is taken; a finite tensor says so."""
    layer = nn.Linear(5, 3, bias=False)
    session = attach(layer, engine=engine, steps="0-" if sampled else "9-")
    with session, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        layer(torch.tensor(X))
        layer(torch.tensor(X)[2:3])
    bad, good = recorded.rows("tensors", tensor="x")
    assert (bad["n_nan"], bad["n_posinf"], bad["n_neginf"]) == (3, 2, 1)
    assert (bad["n_rows_nonfinite"], bad["first_nonfinite_row"], bad["amax"]) == (2, 1, 448.0)
    assert (good["n_nan"], good["n_posinf"], good["n_neginf"], good["n_rows_nonfinite"]) == (0, 0, 0, 0)
    assert (good["first_nonfinite_row"], good["n"], good["amax"]) == (None, 5, 1.0)
    assert bad["sampled"] is good["sampled"] is sampled
    assert (bad["checksum"] is not None) is sampled
    # The kernels drop NaN and see Inf: the history is frozen for as long as the Inf is in it.
    assert [row["scale"] for row in recorded.rows("scales", tensor="x")] == [1.0, 1.0]


@ENGINES
@pytest.mark.parametrize("steps", ["0-", "9-"], ids=["sampled", "health"])
def test_what_overflows_in_the_dtype_of_the_gemm(steps: str, engine: str, attach: Attach, recorded: Recorded) -> None:
    """Finite in FP32, infinite as the FP16 that the GEMM reads: counted, and the row is named."""
    layer = nn.Linear(2, 2, bias=False)
    torch.nn.init.constant_(layer.weight, 1e-8)  # below half of the smallest FP16
    with attach(layer, engine=engine, steps=steps), torch.autocast("cpu", torch.float16):
        layer(torch.tensor([[1.0, 2.0], [3.0, -4.0], [1e6, 1.0], [-65520.0, 65504.0]]))
    x, w = recorded.row("tensors", tensor="x"), recorded.row("tensors", tensor="w")
    assert (x["dtype"], x["gemm_dtype"]) == ("float32", "float16")
    assert (x["n_posinf"], x["n_neginf"], x["n_rows_nonfinite"], x["first_nonfinite_row"]) == (1, 1, 2, 2)
    assert (x["amax"], w["amax"]) == (65504.0, 0.0)


@ENGINES
def test_no_tokens(engine: str, attach: Attach, recorded: Recorded) -> None:
    """A batch without tokens: rows are there, say so, and neither sums nor histories know of it."""
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with attach(layer, engine=engine, raw_every=1):
        for rows in (2, 0, 2):
            layer(torch.full((rows, 4), 2.0)).sum().backward()
            optimizer.step()
    assert recorded.manifest["status"] == "closed"
    for tensor, shape in (("x", [0, 4]), ("dy", [0, 3])):
        row = recorded.row("tensors", tensor=tensor, step=1)
        counts = dict.fromkeys(("n", "n_zero", "n_neg_zero", "n_nan", "n_posinf", "n_neginf", "n_rows_nonfinite"), 0)
        nothing = dict.fromkeys(("first_nonfinite_row", "amin", "amax"))
        expected = counts | nothing | {"shape": shape, "status": "no_tokens"}
        assert {name: row[name] for name in expected} == expected
        for table in ("errors", "histograms", "values"):
            assert not recorded.rows(table, seq=row["seq"])
        assert [s["n_rolls"] for s in recorded.rows("scales", tensor=tensor, alternate=False)] == [0, 1, 1]
    assert {row["step"] for row in recorded.rows("errors", tensor="x")} == {0, 2}


@ENGINES
def test_nothing_but_zeros_or_nan(engine: str, attach: Attach, recorded: Recorded) -> None:
    layer = nn.Linear(4, 3)
    with attach(layer, tensors=["x"], engine=engine):
        layer(torch.zeros(2, 4))
        layer(torch.full((2, 4), NAN))
    zeros, nans = recorded.rows("tensors")
    assert (zeros["n_zero"], zeros["amin"], zeros["amax"], zeros["n_rows_nonfinite"]) == (8, None, 0.0, 0)
    assert (nans["n_nan"], nans["amin"], nans["amax"], nans["n_rows_nonfinite"]) == (8, None, 0.0, 2)
    for row, n in ((zeros, 8), (nans, 0)):
        for error in recorded.rows("errors", seq=row["seq"]):
            sums = {name: error[name] for name in error if name.startswith(("n", "sum", "low"))}
            assert sums == dict.fromkeys(sums, 0) | {"n": n}
            assert error["scale"] == 1.0
    assert [(h["seq"], h["value"], h["count"]) for h in recorded.rows("histograms")] == [(zeros["seq"], 0.0, 8)]


@ENGINES
def test_sums_equal_those_of_the_tensor(engine: str, attach: Attach, recorded: Recorded) -> None:
    """Quantised by ml_dtypes and summed in float64, for both recipes and both formats of dy."""
    import ml_dtypes

    torch.manual_seed(5)
    layer = nn.Linear(64, 32, bias=False)
    seen = {}
    with attach(layer, engine=engine, recipes=["current", "delayed:amax_history_len=2"]):
        for step in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                y = layer(torch.randn(16, 64) * 10.0**step)
            y.register_hook(lambda g, s=step: seen.update({s: g.float().numpy().reshape(-1)}))
            (y.float() ** 3).sum().backward()
            torch.optim.SGD(layer.parameters(), lr=0.0).step()
    dtypes = {"E4M3": (ml_dtypes.float8_e4m3fn, 448.0), "E5M2": (ml_dtypes.float8_e5m2, 57344.0)}
    rows = recorded.rows("errors", tensor="dy")
    assert len(rows) == 2 * 2 * 2
    for row in rows:
        x = seen[row["step"]]
        dtype, top = dtypes[row["fmt"]]
        scale = np.float32(row["scale"])
        scaled = x * scale
        q = np.clip(scaled, -top, top).astype(dtype).astype(np.float32) * (np.float32(1) / scale)
        wide, q = x.astype(np.float64), q.astype(np.float64)
        assert row["n"] == x.size
        beyond = abs(scaled) > 464 if row["fmt"] == "E4M3" else abs(scaled) >= 61440
        assert row["n_overflow"] == beyond.sum()
        assert row["n_underflow"] == ((x != 0) & (q == 0)).sum()
        for name, value in (("x2", wide**2), ("q2", q**2), ("xq", wide * q), ("err2", (wide - q) ** 2)):
            assert row[f"sum_{name}"] == pytest.approx(value.sum(), rel=1e-9), name
    assert {row["n_overflow"] > 0 for row in rows} == {True, False}
