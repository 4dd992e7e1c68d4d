"""Scalars and octaves: every number against one that was worked out by hand."""

from __future__ import annotations

import math

import pytest

from fp8debug.analysis import Run
from fp8debug.analysis.export import Narrowing, nothing_selected, readings, rows_of_view, scalars_of
from fp8debug.analysis.export.histograms import octaves
from fp8debug.errors import UsageError


def named(run: Run, narrowing: Narrowing | None = None) -> dict[tuple[int, str], tuple[float | None, float]]:
    return {(s.step, s.name): (s.unix_s, s.value) for r in readings(run, narrowing) for s in scalars_of(r)}


def test_every_scalar(known: Run) -> None:
    found = {key: value for key, value in named(known).items() if "<script>" not in key[1]}
    loss = found.pop((7, "loss"))
    assert loss[0] is None and math.isnan(loss[1])
    at = 1_700_000_000.25
    assert found == {
        (0, "loss"): (at, 2.5), (0, "grad_norm"): (at, 1.5), (0, "lr"): (at, 0.125), (0, "amax/fc/x"): (at, 448.0),
        (0, "underflow/fc/x/delayed"): (at, 1 / 3), (0, "overflow/fc/x/delayed"): (at, 1 / 4),
        # 448 comes back as 224, 2^-12 as 0: an error of 224^2 + 2^-24 beside 448^2 + 1 + 2^-24
        (0, "sqnr_db/fc/x/delayed"): (at, pytest.approx(10 * math.log10((448**2 + 1 + 2**-24) / (224**2 + 2**-24)))),
        (0, "scale_gap_bits/fc/x/delayed"): (at, 1.0),
        (7, "amax/fc/x"): (None, 448.0), (7, "scale_gap_bits/fc/x/delayed"): (None, 2.0),
        (7, "amax/fc/dy"): (None, 2.0),
    }  # fmt: skip


def test_steps_rise(known: Run) -> None:
    steps = [reading.step for reading in readings(known)]
    assert steps == sorted(steps) and set(steps) == {0, 7}


def test_narrowed(known: Run) -> None:
    wanted = Narrowing(layer="^fc$", tensors=("x",), steps=((5, None),))
    assert set(named(known, wanted)) == {(7, "loss"), (7, "amax/fc/x"), (7, "scale_gap_bits/fc/x/delayed")}
    for narrowing, message in (
        (Narrowing(layer="nope"), "matches none of the 2 recorded layers"),
        (Narrowing(layer="("), "is not a regular expression"),
        (Narrowing(tensors=("w",)), "w was not recorded; this run has dy, x"),
        (Narrowing(steps=((8, 9),)), "this run has steps 0 to 7"),
        (Narrowing(recipes=("mxfp8",)), "recipe 'mxfp8' was not recorded; this run has: delayed"),
    ):
        with pytest.raises(UsageError, match=message.replace("(", r"\(")):
            named(known, narrowing)


def test_octaves(known: Run) -> None:
    """448 in [2^8, 2^9), 1 in [1, 2), 2^-12 in its own; the zero in none."""
    (entry,) = octaves(known, Narrowing(layer="^fc$"))
    assert (entry.step, entry.operand.layer, entry.operand.tensor, entry.first) == (0, "fc", "x", -12)
    assert {entry.first + place: n for place, n in enumerate(entry.counts) if n} == {-12: 1, 0: 1, 8: 1}
    assert len(entry.counts) == 21


def test_rows_of_a_view(known: Run) -> None:
    wanted = Narrowing(layer="^fc$", recipes=("delayed",))
    rows = rows_of_view(known, "operand_steps", wanted).project("step, tensor, underflow, scale_gap_bits").fetchall()
    assert rows == [(0, "x", 1 / 3, 1.0), (7, "x", None, 2.0)]
    assert rows_of_view(known, "events").project("kind").fetchall() == [("never_fired",)]
    with pytest.raises(UsageError, match="there is no view 'operand_step'; nearest names: operand_steps"):
        rows_of_view(known, "operand_step")
    with pytest.raises(UsageError, match="no view 'records'"):
        rows_of_view(known, "records")
    with pytest.raises(UsageError, match="view steps has no column layer, so --layer cannot narrow it"):
        rows_of_view(known, "steps", wanted)


def test_nothing_selected_says_what_there_is(known: Run) -> None:
    wanted = Narrowing(tensors=("dy",), recipes=("delayed",))
    assert rows_of_view(known, "operand_steps", wanted).fetchall() == []
    message = str(nothing_selected(known, "operand_steps", wanted))
    assert message.startswith(
        "--tensor and --recipe leave no row of operand_steps to export; the view has steps 0 to 7"
    )
    assert message.endswith("tensors x; recipes delayed")
    assert "has no rows" in str(nothing_selected(known, "evals"))
