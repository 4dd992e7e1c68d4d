"""A distribution over octaves as bars of block characters, with the ranges of formats below them on the same axis."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fp8debug.cli.render.sparkline import BLOCKS
from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import display_width, pad

_INDENT = 2
_LABEL_WIDTH = 14
_ROWS = 4
_WIDEST_CELL = 3
_BEYOND = 3
"""Octaves that are drawn beside the values, at most, to show where a range ends."""
_TICK_WIDTH = 8


@dataclass(frozen=True, slots=True)
class Range:
    """What a format can hold at its scale, in the tensor's own unit."""

    label: str
    largest: float
    smallest_normal: float
    smallest_subnormal: float


@dataclass(frozen=True, slots=True)
class Axis:
    """Octaves from `first` to `last`, `per_cell` of them in each cell of `width` characters."""

    first: int
    last: int
    per_cell: int
    width: int

    @property
    def n_cells(self) -> int:
        """Cells that cover all of it."""
        return -(-(self.last - self.first + 1) // self.per_cell)

    def cell(self, octave: int) -> int:
        """Place of an octave's cell; below 0 or beyond the last where it is not on the axis."""
        return (octave - self.first) // self.per_cell


def octave_of(value: float) -> int:
    """The e with 2^e <= value < 2^(e+1), of a positive finite value."""
    return math.frexp(value)[1] - 1


def axis_of(octaves: Sequence[int], ranges: Sequence[Range], columns: int) -> Axis:
    """An axis for these octaves, in so many columns; ends of ranges are on it where they are near."""
    first, last = octaves[0], octaves[-1]
    first = max(first - _BEYOND, min([first, *(octave_of(each.smallest_subnormal) for each in ranges)]))
    last = min(last + _BEYOND, max([last, *(octave_of(each.largest) for each in ranges)]))
    per_cell = -(-(last - first + 1) // columns)
    n_cells = -(-(last - first + 1) // per_cell)
    return Axis(first, last, per_cell, min(_WIDEST_CELL, columns // n_cells))


def chart_lines(
    octaves: Sequence[int], bars: Sequence[tuple[str, Sequence[int]]], ranges: Sequence[Range], looks: Looks
) -> Iterator[str]:
    """Bars of each series, one height for all of them, then the ranges and the axis.

    Args:
        octaves: exponents, rising without gaps, at least one.
        bars: labels and elements in each octave.
        ranges: of formats; the first one colours the bars beyond it.
        looks: of the stream.
    """
    axis = axis_of(octaves, ranges, looks.width - _INDENT - _LABEL_WIDTH)
    cells = {label: _cells(octaves, counts, axis) for label, counts in bars}
    top = max((max(column) for column in cells.values()), default=0)
    for label, column in cells.items():
        yield from _bars(label, column, top, axis, ranges[0] if ranges else None, looks)
    for each in ranges:
        yield _labelled(each.label, _ruler(each, axis, looks))
    yield _labelled("", _ticks(axis))


def line_of(octaves: Sequence[int], counts: Sequence[int], columns: int, looks: Looks) -> str:
    """The same in one line, without ranges."""
    axis = Axis(octaves[0], octaves[-1], -(-len(octaves) // columns), 1)
    cells = _cells(octaves, counts, axis)
    return _row(cells, max(cells), axis, 0, 1, looks.ascii_only)


def _cells(octaves: Sequence[int], counts: Sequence[int], axis: Axis) -> list[int]:
    cells = [0] * axis.n_cells
    for octave, count in zip(octaves, counts, strict=True):
        cells[axis.cell(octave)] += count
    return cells


def _bars(label: str, cells: Sequence[int], top: int, axis: Axis, held: Range | None, looks: Looks) -> Iterator[str]:
    for row in reversed(range(_ROWS)):
        text = _row(cells, top, axis, row, _ROWS, looks.ascii_only)
        yield _labelled(label if row == 0 else "", _coloured(text, axis, held, looks))


def _row(cells: Sequence[int], top: int, axis: Axis, row: int, n_rows: int, ascii_only: bool) -> str:
    """One line of bars of `n_rows` lines, row 0 the lowest. A single element is not lost beside millions."""
    n_blocks = len(BLOCKS)
    shades = "_.:-=+*#" if ascii_only else BLOCKS
    text = ""
    for count in cells:
        level = max(1, round(count / top * n_rows * n_blocks)) if count else 0
        part = min(n_blocks, level - row * n_blocks)
        text += (shades[part - 1] if part > 0 else " ") * axis.width
    return text


def _coloured(text: str, axis: Axis, held: Range | None, looks: Looks) -> str:
    """Red what is beyond the largest value, yellow what is below the smallest."""
    if held is None or not looks.colour:
        return text
    low = max(0, axis.cell(octave_of(held.smallest_subnormal))) * axis.width
    high = max(0, axis.cell(octave_of(held.largest)) + 1) * axis.width
    return looks.yellow(text[:low]) + text[low:high] + looks.red(text[high:].rstrip())


def _ruler(held: Range, axis: Axis, looks: Looks) -> str:
    """`[...-----]`: subnormal values, then normal ones; an end that is not on the axis is an arrow."""
    first, last = (axis.cell(octave_of(value)) for value in (held.smallest_subnormal, held.largest))
    normal = axis.cell(octave_of(held.smallest_normal))
    begin, faint, firm, end = "[.-]" if looks.ascii_only else "├┄─┤"
    text = "".join(
        (" " if not first <= cell <= last else faint if cell < normal else firm) * axis.width
        for cell in range(axis.n_cells)
    )
    if last < 0 or first >= axis.n_cells:
        return "< all below" if last < 0 else pad("all above >", len(text), right=True)
    is_cut = last >= axis.n_cells
    text = _put(text, min((last + 1) * axis.width, len(text)) - 1, ">" if is_cut else end)
    return _put(text, first * axis.width, begin) if first >= 0 else _put(text, 0, "<")


def _put(text: str, place: int, character: str) -> str:
    return text[:place] + character + text[place + 1 :]


def _ticks(axis: Axis) -> str:
    """`2^-24    2^-16`: each stands where its octave begins."""
    every = -(-_TICK_WIDTH // axis.width) * axis.per_cell
    text = ""
    for octave in range(axis.first, axis.last + 1):
        place = axis.cell(octave) * axis.width
        if octave % every == 0 and place >= display_width(text):
            text = pad(text, place) + f"2^{octave} "
    return text


def _labelled(label: str, text: str) -> str:
    return (" " * _INDENT + pad(label, _LABEL_WIDTH) + text).rstrip()
