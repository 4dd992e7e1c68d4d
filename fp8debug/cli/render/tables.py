"""Plain text that survives a pipe: escaping, wrapping, aligned columns."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence

from fp8debug.errors import escape as escape


def display_width(text: str) -> int:
    """Columns that a terminal needs for `text`."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Fill `text` with blanks to `width` columns, on its left when `right` (right-aligned)."""
    blanks = " " * max(0, width - display_width(text))
    return blanks + text if right else text + blanks


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[bool] = (), gap: str = "  ") -> list[str]:
    """Align `rows` in columns; column i is right-aligned when `right[i]`. No trailing blanks."""
    if not rows:
        return []
    n_columns = max(len(row) for row in rows)
    widths = [max(display_width(row[i]) for row in rows if i < len(row)) for i in range(n_columns)]
    flags = [*right, *[False] * (n_columns - len(right))]
    return [gap.join(pad(cell, widths[i], right=flags[i]) for i, cell in enumerate(row)).rstrip() for row in rows]


def named_columns(rows: Sequence[Sequence[str]], width: int, *, right: Sequence[bool] = ()) -> list[str]:
    """`columns` whose first is names: one that would make its line longer than `width` stands on the line above."""
    rest = max(map(display_width, columns([("", *row[1:]) for row in rows])), default=0)
    is_long = [display_width(row[0]) + rest > width for row in rows]
    lines = columns([("", *row[1:]) if long else row for row, long in zip(rows, is_long, strict=True)], right=right)
    return [
        line
        for row, long, cells in zip(rows, is_long, lines, strict=True)
        for line in ([row[0], cells] if long else [cells])
    ]


def wrap(text: str, width: int, *, indent: str = "  ", hanging: str = "", break_long: bool = False) -> list[str]:
    """Break `text` at blanks into lines of at most `width` columns; later lines are indented by `hanging` more.

    A word that is longer than a line stays whole, unless `break_long`.
    """
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=" " * display_width(indent) + hanging,
        break_long_words=break_long,
        break_on_hyphens=False,
    )


def chunks(text: str, width: int) -> list[str]:
    """Cut `text`, a name that must stay whole, into pieces of at most `width` characters."""
    return [text[start : start + width] for start in range(0, len(text), width)] or [""]
