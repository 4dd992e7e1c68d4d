"""One row a step over ranks: the amax of all, the gap of the scale that they share."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.page import page_run

RECIPE = "delayed:amax_history_len=4"
AMAXES = {0: [1.0, 2.0, 1.0, 8.0], 1: [4.0, 1.0, 2.0, 1.0]}
"""By rank, one a step."""


def test_steps_are_of_the_group(new_ranks: Callable[..., Any]) -> None:
    ranks = new_ranks(2)
    for step in range(4):
        pieces = {
            rank: np.linspace(-1, 1, 600, dtype=np.float32).reshape(20, 30) * np.float32(amaxes[step])
            for rank, amaxes in AMAXES.items()
        }
        ranks.give("fc", "x", pieces, step=step, sampled=step % 2 == 1)
    ranks.steps(range(4))
    with open_run(ranks.write()) as run:
        amaxes = run.sql("select step, amax, amin, n_nonfinite from tensor_steps order by step").fetchall()
        rows = run.sql(
            "select step, amax, scale_gap_bits, exact, underflow, sqnr_db from operand_steps where recipe = $recipe "
            "order by step",
            recipe=RECIPE,
        ).fetchall()
        shown = page_run(run)
        merged = run.sql(
            "select step, sqnr_db from merged_error_ratios where recipe = $r order by 1", r=RECIPE
        ).fetchall()
    whole = [max(AMAXES[0][step], AMAXES[1][step]) for step in range(4)]
    assert [(step, amax) for step, amax, _, _ in amaxes] == list(enumerate(whole))
    assert {bad for *_, bad in amaxes} == {0}
    gaps = [None, *(math.log2(whole[step] / max(whole[:step])) for step in (1, 2, 3))]
    assert [row[2] for row in rows] == pytest.approx(gaps)
    assert [row[1] for row in rows] == [max(whole[0], 0.0), *whole[1:]]
    assert [row[4] is not None for row in rows] == [False, True, False, True]
    assert [(row[0], row[5]) for row in rows if row[5] is not None] == merged
    planes = {(plane.metric, plane.recipe): plane.values[0].tolist() for plane in shown.planes}
    assert planes["amax", None] == whole
    assert planes["scale_gap_bits", RECIPE][1:] == pytest.approx(gaps[1:])
    assert planes["sqnr_db", RECIPE][1::2] == pytest.approx([sqnr_db for _, sqnr_db in merged])
