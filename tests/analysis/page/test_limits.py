"""The largest value that a scale leaves room for, where it does not follow from the amax and the gap."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.page import merge_columns, page_run
from fp8debug.analysis.page.records import PageRun

if TYPE_CHECKING:
    from tests.synthetic_run import SyntheticRun

NewRun = Callable[..., "SyntheticRun"]

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def limits(shown: PageRun) -> list[list[float]]:
    return [plane.values[0].tolist() for plane in shown.planes if plane.metric == "largest_held"]


def test_micro_batches_of_other_sizes_have_one_limit(new_run: NewRun, synthetic_run: ModuleType) -> None:
    run = new_run(recipes=["delayed", "current"])
    for step in range(3):
        for microbatch, size in enumerate((1.0, 8.0)):  # the widest gap is of the small one
            run.add("fc", "x", X * size, step=step, microbatch=microbatch, scales=(synthetic_run.ForcedScale(7.0),))
    with open_run(run.write()) as opened:
        shown = page_run(opened)
        ((plane,),) = [[plane for plane in shown.planes if plane.metric == "largest_held"]]
        asked = opened.sql(plane.sql).fetchall()
    assert (plane.operand, plane.recipe, plane.fmt) == ("x", "delayed", "E4M3")
    assert plane.values[0].tolist() == [64.0] * 3
    assert asked == [("fc", step, 64.0) for step in range(3)]


def test_what_the_gap_tells_is_kept_once_until_columns_are_merged(new_run: NewRun, synthetic_run: ModuleType) -> None:
    run = new_run(recipes=["delayed", "current"])
    for step, size in enumerate((8.0, 1.0, 4.0, 4.0)):
        scales = (synthetic_run.ForcedScale(448 / (size * (1 + step))),)
        run.add("fc", "x", X * size, step=step, sampled=False, scales=scales)
    with open_run(run.write()) as opened:
        whole, narrow = page_run(opened), page_run(opened, max_columns=2)
        asked = [opened.sql(plane.sql).fetchall() for plane in narrow.planes if plane.metric == "largest_held"]
    assert limits(whole) == []
    assert limits(narrow)[0] == pytest.approx([2.0, 12.0])  # of 8, 2 and of 12, 16: the smallest
    assert limits(merge_columns(whole, 2))[0] == pytest.approx([2.0, 12.0])
    assert asked == [[("fc", 0, pytest.approx(2.0)), ("fc", 2, pytest.approx(12.0))]]
