"""Options that narrow a question to layers, tensors and steps, and what they say."""

from __future__ import annotations

from typing import Annotated

import typer

Layers = Annotated[
    str | None, typer.Option("--layer", metavar="REGEX", help="Layers that match (re.search) only. [all]")
]
Tensors = Annotated[
    str | None, typer.Option("--tensor", metavar="LIST", help="Tensors, of x,w,dy,y,dx,dw. [all recorded]")
]


def tensors_named(words: str | None) -> tuple[str, ...] | None:
    """Tensors of a list such as `x,dy`; upstream's words are understood.

    Raises:
        UsageError: a word that names none.
    """
    from fp8debug.config import BadValue, parse_tensors
    from fp8debug.errors import UsageError

    if words is None:
        return None
    try:
        return parse_tensors(words)
    except BadValue as error:
        raise UsageError(f"--tensor: got {words!r}; expected {error}") from error


def step_ranges(text: str | None) -> tuple[tuple[int, int | None], ...] | None:
    """Ranges (first, last), both included, of a text such as `0-9,100,200-`; last None: to the end.

    Raises:
        UsageError: not of that form.
    """
    if text is None:
        return None
    from fp8debug.hooks.schedule import parse_steps

    return tuple((part.first, part.last) for part in parse_steps(text))
