"""Numbers side by side: one row a thing, groups of columns under a title, in as many tables as the width needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import display_width, pad

_INDENT = 2
_GAP = 2
_CELL = 5
_NAME_WIDTH = 30


@dataclass(frozen=True, slots=True)
class Cell:
    """One number as text; `is_bad` and `is_odd` give it a colour."""

    text: str = "-"
    is_bad: bool = False
    is_odd: bool = False

    def shown(self, width: int, looks: Looks) -> str:
        """The text, right-aligned."""
        text = pad(self.text, width, right=True)
        return looks.red(text) if self.is_bad else looks.yellow(text) if self.is_odd else text


@dataclass(frozen=True, slots=True)
class Group:
    """Columns that belong together; `rows[i]` are the cells of row i."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def widths(self) -> list[int]:
        """Width of each column."""
        return [
            max(_CELL, display_width(head), *(display_width(row[i].text) for row in self.rows))
            for i, head in enumerate(self.heads)
        ]

    @property
    def width(self) -> int:
        """Width of all, the blank between columns and the title included."""
        return max(sum(self.widths) + len(self.heads) - 1, display_width(self.title))


def matrix_lines(corner: str, names: Sequence[str], groups: Sequence[Group], looks: Looks) -> Iterator[str]:
    """Tables of `groups`, a blank line between them. A name that is too long stands on a line of its own."""
    short = [display_width(name) for name in (corner, *names) if display_width(name) <= _NAME_WIDTH]
    name_width = max(short)
    for number, table in enumerate(_packed(groups, looks.width - _INDENT - name_width)):
        if number:
            yield ""
        yield from _table(corner, names, name_width, table, looks)


def _packed(groups: Sequence[Group], width: int) -> Iterator[list[Group]]:
    """Neighbours together as long as they fit."""
    table: list[Group] = []
    for group in groups:
        if table and sum(_GAP + g.width for g in (*table, group)) > width:
            yield table
            table = []
        table.append(group)
    if table:
        yield table


def _table(corner: str, names: Sequence[str], name_width: int, groups: Sequence[Group], looks: Looks) -> Iterator[str]:
    titles = [pad(group.title, group.width, right=True) for group in groups]
    yield looks.dim(_line("", name_width, titles))
    heads = [_cells(group, [Cell(head) for head in group.heads], Looks()) for group in groups]
    yield looks.dim(_line(corner, name_width, heads))
    for row, name in enumerate(names):
        is_short = display_width(name) <= name_width
        if not is_short:
            yield " " * _INDENT + name
        cells = [_cells(group, group.rows[row], looks) for group in groups]
        yield _line(name if is_short else "", name_width, cells)


def _cells(group: Group, cells: Sequence[Cell], looks: Looks) -> str:
    widths = group.widths
    text = " ".join(cell.shown(width, looks) for cell, width in zip(cells, widths, strict=True))
    return " " * (group.width - sum(widths) - len(widths) + 1) + text


def _line(name: str, name_width: int, texts: Sequence[str]) -> str:
    return (" " * _INDENT + pad(name, name_width) + "".join(" " * _GAP + text for text in texts)).rstrip()
