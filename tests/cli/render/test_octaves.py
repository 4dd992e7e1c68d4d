"""Bars over octaves: every element is seen, ranges stand where their values are, nothing is wider than it may be."""

from __future__ import annotations

import pytest

from fp8debug.cli.render.octaves import Axis, Range, axis_of, chart_lines, line_of, octave_of
from fp8debug.cli.render.stream import Looks

ASCII = Looks(ascii_only=True)
E4M3 = Range("E4M3", 448.0, 2.0**-6, 2.0**-9)
LABEL = 16


def rows(*lines: str) -> list[str]:
    return [line[LABEL:] for line in lines]


@pytest.mark.parametrize(("value", "octave"), [(1.0, 0), (1.999, 0), (0.99, -1), (448.0, 8), (2.0**-149, -149)])
def test_octaves_are_exact(value: float, octave: int) -> None:
    assert octave_of(value) == octave


def test_a_single_element_is_seen_beside_a_million() -> None:
    *_, low, _ = chart_lines(range(-2, 1), [("before", (1, 0, 10**6))], [], ASCII)
    assert low.startswith("  before")
    assert low[LABEL:] == "___   ###"


def test_bars_of_all_series_have_one_height() -> None:
    *before, after, _ = chart_lines(range(2), [("before", (100, 0)), ("after", (25, 0))], [], ASCII)
    assert rows(*before[:4]) == ["###"] * 4
    assert after[LABEL:] == "###"


def test_a_range_begins_and_ends_in_the_octaves_of_its_values() -> None:
    *_, ruler, ticks = chart_lines(range(-9, 9), [("before", (1,) * 18)], [E4M3], ASCII)
    first, last = ticks.index("2^-9"), ticks.index("2^0") + 3 * 8
    assert ruler[first : last + 3] == "[........" + "-" * 44 + "]"
    assert ruler.startswith("  E4M3")


def test_what_is_not_on_the_axis_is_an_arrow() -> None:
    far = Range("far", 2.0**40, 2.0**-30, 2.0**-40)
    *_, ruler, _ = chart_lines(range(-9, 9), [("before", (1,) * 18)], [far], ASCII)
    assert ruler[LABEL] == "<"
    assert ruler[-1] == ">"
    above = Range("above", 2.0**90, 2.0**70, 2.0**60)
    below = Range("below", 2.0**-60, 2.0**-70, 2.0**-80)
    *_, high, low, _ = chart_lines(range(3), [("before", (1, 1, 1))], [above, below], ASCII)
    assert high.endswith("all above >")
    assert low.endswith("< all below")


@pytest.mark.parametrize("n", [1, 2, 17, 33, 65, 130, 277])
def test_no_line_is_too_long(n: int) -> None:
    octaves = range(-149, -149 + n)
    lines = list(chart_lines(octaves, [("before", (1,) * n)], [E4M3], Looks()))
    assert max(map(len, lines)) <= 80
    assert len(line_of(octaves, (1,) * n, 40, Looks())) <= 40


def test_neighbours_share_a_cell_where_there_is_no_room() -> None:
    axis = axis_of(range(-100, 28), [], 64)
    assert axis == Axis(-100, 27, 2, 1)
    assert (axis.cell(-100), axis.cell(-99), axis.cell(27), axis.n_cells) == (0, 0, 63, 64)


def test_what_a_format_cannot_hold_is_coloured_on_a_terminal() -> None:
    *_, low, _, _ = chart_lines(range(-12, 12), [("before", (1,) * 24)], [E4M3], Looks(colour=True))
    assert low.count("\x1b[33m") == low.count("\x1b[31m") == 1
