"""One line that shows a course: limits, gaps, and never an average over a bad step."""

from __future__ import annotations

import math

import pytest

from fp8debug.cli.render.sparkline import bucketed, sparkline


def test_levels() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7, 8], low=0, high=8, width=9) == "▁▂▃▄▅▆▇██"
    assert sparkline([-5, 99], low=0, high=8, width=9) == "▁█", "what lies outside is drawn as the limit"
    assert sparkline([0, 8], low=0, high=8, width=9, ascii_only=True) == "_#"


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_gaps(value: float | None) -> None:
    assert sparkline([0, value, 8], low=0, high=8, width=9) == "▁·█"


def test_nothing_to_scale_by() -> None:
    assert sparkline([3, 3], low=3, high=3, width=9) == "▁▁"
    assert sparkline([], low=0, high=1, width=9) == ""


def test_the_worst_of_neighbours_is_drawn() -> None:
    values = [30.0] * 100
    values[57] = 2.0
    assert sparkline(values, low=0, high=30, width=10) == "█████▁████"
    assert sparkline([-v for v in values], low=-30, high=0, width=10, worst=max) == "▁▁▁▁▁█▁▁▁▁"
    assert bucketed([1.0, None, None, None], 2, min) == [1.0, None]


def test_every_value_has_a_place() -> None:
    for n in range(1, 50):
        for width in (1, 7, 60):
            groups = bucketed(list(range(n)), width, max)
            assert len(groups) == min(n, width) and groups[-1] == n - 1
