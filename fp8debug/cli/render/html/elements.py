"""HTML made of strings, of which only `text`, `prose` and the like become markup: what is forgotten cannot be typed."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import NewType

from fp8debug.errors import escape, escape_lines

Markup = NewType("Markup", str)
NOTHING = Markup("")

_VOID = frozenset({"br", "input", "link", "meta"})


def text(words: str) -> Markup:
    """Words as they are: control characters and bidi marks visible, nothing of them markup."""
    return Markup(html.escape(escape(words)))


def lines(words: str) -> Markup:
    """The same of a text whose lines are to stay lines."""
    return Markup(html.escape(escape_lines(words)))


def prose(words: str) -> Markup:
    """A sentence of ours, in which `commands` stand between backticks."""
    parts = words.split("`")
    if len(parts) % 2 == 0:  # a backtick in a name: there are no pairs to trust
        return text(words)
    return joined(element("code", text(part)) if i % 2 else text(part) for i, part in enumerate(parts))


def element(name: str, /, *children: Markup, **attributes: str | None) -> Markup:
    """`<name attributes>children</name>`; None leaves an attribute out; `class_` is `class`, `data_run` `data-run`."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{given}>")
    return Markup(f"<{name}{given}>{''.join(children)}</{name}>")


def joined(parts: Iterable[Markup], between: str = "") -> Markup:
    """One after the other."""
    return Markup(html.escape(between).join(parts))


def items(entries: Iterable[Markup], *, name: str = "ul", class_: str | None = None) -> Markup:
    """A list; nothing where there are no entries."""
    found = [element("li", entry) for entry in entries]
    return element(name, *found, class_=class_) if found else NOTHING


def terms(pairs: Iterable[tuple[str, Markup]], *, class_: str | None = None) -> Markup:
    """Labels with what belongs to them; pairs without content are left out."""
    found = [joined([element("dt", text(label)), element("dd", content)]) for label, content in pairs if content]
    return element("dl", *found, class_=class_) if found else NOTHING


def table(label: str, head: Sequence[Markup], rows: Iterable[Sequence[Markup]], *, caption: Markup = NOTHING) -> Markup:
    """Rows of `th` and `td` elements under a head of them, in a frame that scrolls where they are too wide."""
    body = [element("tr", *row) for row in rows]
    parts = [
        element("caption", caption) if caption else NOTHING,
        element("thead", element("tr", *head)),
        element("tbody", *body),
    ]
    return framed(element("table", *parts), label)


def framed(content: Markup, label: str) -> Markup:
    """What may be wider than the page, in a frame that scrolls, with the keyboard too; `label` names it."""
    return element("div", content, class_="scroll-x", tabindex="0", role="region", aria_label=label)


def column(words: str, *, is_number: bool = False, **attributes: str | None) -> Markup:
    """The head of a column; an empty cell where it needs none."""
    if not words:
        return element("td")
    return element("th", text(words), scope="col", class_="number" if is_number else None, **attributes)


def row_head(content: Markup) -> Markup:
    """The first cell of a row: what the row is about."""
    return element("th", content, scope="row")


def cell(content: Markup) -> Markup:
    """A cell of words."""
    return element("td", content)


def number(words: str, *, class_: str = "") -> Markup:
    """A cell of a number."""
    return element("td", text(words), class_=f"number {class_}".rstrip())


def code_block(words: str, kind: str) -> Markup:
    """A text to copy; `kind` is `sql` or `copy`."""
    return element("pre", element("code", lines(words)), class_=kind, tabindex="0")
