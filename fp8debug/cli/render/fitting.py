"""Text that must fit a terminal: lines cut to its width, sections cut to its height."""

from __future__ import annotations

from dataclasses import dataclass, field

from fp8debug.cli.render.stream import Looks
from fp8debug.cli.render.tables import display_width

_LEAST_ROWS = 1


@dataclass(slots=True)
class Section:
    """A part of the screen; its rows go from the end where there is no room."""

    title: list[str] = field(default_factory=list)
    """Empty: it is not shown."""
    rows: list[str] = field(default_factory=list)
    weight: float = 1.0
    """How many rows it may have for one of another's."""


def fitted_sections(head: list[str], sections: list[Section], foot: str, height: int) -> list[str]:
    """All of it with a blank line between; where that is too much, without those and with fewer rows."""
    sections = [section for section in sections if section.title]
    for between in (1, 0):
        for least in (_LEAST_ROWS, 0):
            kept = _thinned(sections, height - len(head) - 1 - between * (len(sections) + 1), least)
            if kept is not None:
                blank = [""] * between
                body = [line for section in kept for line in (*section.title, *section.rows, *blank)]
                return [*head, *blank, *body, foot]
    return [*head, foot][:height]


def _thinned(sections: list[Section], height: int, least: int) -> list[Section] | None:
    """The sections in at most `height` lines, rows taken from the longest, none left with less than `least`."""
    kept = [Section(section.title, list(section.rows), section.weight) for section in sections]
    while sum(len(section.title) + len(section.rows) for section in kept) > height:
        longest = max(kept, key=lambda section: len(section.rows) / section.weight, default=None)
        if longest is None or len(longest.rows) <= least:
            return None
        longest.rows.pop()
    return kept


def cut(text: str, looks: Looks, *, less: int = 0, width: int | None = None) -> str:
    """The beginning of the text, as much as fits a line, or `width` columns."""
    mark = ".." if looks.ascii_only else "…"
    width = looks.width - less if width is None else width
    if display_width(text) <= width:
        return text
    while text and display_width(text) > width - len(mark):
        text = text[:-1]
    return text + mark


def tail(text: str, looks: Looks, *, width: int) -> str:
    """The end of the text, as much as fits."""
    mark = ".." if looks.ascii_only else "…"
    if display_width(text) <= width:
        return text
    while text and display_width(text) > width - len(mark):
        text = text[1:]
    return mark + text
