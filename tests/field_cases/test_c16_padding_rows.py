"""C16: rows that only fill a batch up to the multiple that a quantiser needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from fp8debug.analysis.diagnosis import Finding, diagnose

if TYPE_CHECKING:
    from fp8debug.analysis import Run
    from tests.field_cases.conftest import Normal, Opened, Replay

VALID = torch.arange(128) < 100


def padded(normal: Normal, fill: float) -> torch.Tensor:
    return torch.cat([normal(100, 64), torch.full((28, 64), fill)])


@pytest.mark.captures(
    case="padding rows, empty experts, zero tokens",
    how="session.mask(bool tensor of valid rows), or a callable (layer, tensor, rows)",
    sees="valid and padding rows of x, dy, y and dx apart, both under the scale of the whole; view row_classes",
    limits="sampled steps only; other tensors have no rows of tokens",
)
@pytest.mark.parametrize(
    "replay", [{"engine": e, "recipes": ["current", "coat"]} for e in ("torch", "numba")], indirect=True
)
def test_padding_of_500_sets_the_scale_and_harms_nothing(replay: Replay, opened: Opened, normal: Normal) -> None:
    replay.session.mask(VALID.reshape(2, 64))
    replay.observe("x", padded(normal, 500.0))
    replay.session.close()
    run = opened()
    row = run.sql("from row_classes where recipe = 'current'").fetchall()[0]
    got = dict(zip(run.sql("from row_classes").columns, row, strict=True))
    assert got["valid_scale_gap_bits"] == pytest.approx(-7.0, abs=0.2)
    assert (got["padding_scale_gap_bits"], got["scale_gap_bits"]) == (0, 0)
    assert got["valid_sqnr_db"] == pytest.approx(31.6, abs=0.3)
    assert got["valid_underflow"] == pytest.approx(0.0009, abs=0.0005)
    assert (got["padding_underflow"], got["n_valid"], got["n_padding"]) == (0, 6400, 1792)
    assert (got["padding_mean"], got["padding_kurtosis"]) == (500.0, None)
    x = normal(100, 64).double()
    assert got["valid_mean"] == pytest.approx(float(x.mean()), abs=1e-3)
    fourth = float((x - x.mean()).pow(4).mean() / x.var(unbiased=False) ** 2)
    assert got["valid_kurtosis"] == pytest.approx(fourth, rel=1e-2)
    assert got["valid_cosine"] == pytest.approx(0.9997, abs=3e-4)
    # What stands for the tensor is the whole of it, once.
    assert run.sql("select n, amax from tensors").fetchall() == [(8192, 500.0)]
    assert run.sql("select count(*), sum(n) from errors where recipe = 'current'").fetchall() == [(1, 8192)]
    assert run.sql("select sum(count) from histograms").fetchall() == [(8192,)]
    assert run.sql("select n from whatif_current('E4M3')").fetchall() == [(8192,)]
    assert run.sql("select n_records from layer_summary").fetchall() == [(1,), (1,)]


def test_zeros_as_padding_are_no_underflow(replay: Replay, opened: Opened, normal: Normal) -> None:
    replay.session.mask(VALID)
    replay.observe("x", padded(normal, 0.0).bfloat16())
    replay.session.close()
    run = opened()
    ((valid, padding, n),) = run.sql("select valid_underflow, padding_underflow, n_padding from row_classes").fetchall()
    assert (valid, padding, n) == (0, None, 1792)
    assert run.sql("select underflow from tensor_errors").fetchall() == [(0,)]


def padding_finding(run: Run) -> Finding | None:
    return next((found for found in diagnose(run) if found.rule == "padding_dominates"), None)


def test_what_is_said_of_padding_that_harms_nothing(replay: Replay, opened: Opened, normal: Normal) -> None:
    replay.session.mask(VALID)
    replay.observe("x", padded(normal, 500.0))
    replay.session.mask(VALID)
    replay.observe("x", padded(normal, 0.0), layer="zeros")
    replay.session.close()
    (found,) = diagnose(opened())
    assert (found.rule, found.severity, found.layers) == ("padding_dominates", "note", ("fc",))
    assert found.message.startswith(
        "scale dominated by rows 100-127, not harmful for E4M3 per-tensor: the valid rows keep 31."
    )
    shown = {entry.title: entry.value for entry in found.evidence}
    assert float(shown["scale gap of the valid rows, bits"]) == pytest.approx(-7.0, abs=0.2)
    assert float(shown["underflow in valid rows, %"]) == pytest.approx(0.09, abs=0.05)


@pytest.mark.parametrize("replay", [{"recipes": ["current:fp8_format=E2M1"]}], indirect=True)
def test_padding_that_harms(replay: Replay, opened: Opened, normal: Normal) -> None:
    """In many short ranges, under a format with a small range."""
    replay.session.mask(torch.arange(128) % 4 != 0)
    replay.observe("x", torch.where((torch.arange(128) % 4 != 0)[:, None], normal(128, 64), 500.0))
    replay.session.close()
    found = padding_finding(opened())
    assert found is not None and found.severity == "warning"
    assert found.message.startswith(
        "scale dominated by 32 padding rows, and harmful: under current:fp8_format=E2M1 the"
    )
