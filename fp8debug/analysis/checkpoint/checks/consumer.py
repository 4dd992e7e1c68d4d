"""Those who may read a checkpoint: the entries of consumers.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fp8debug.errors import UsageError, nearest

Block = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Consumer:
    """What a reader demands of a checkpoint."""

    name: str
    """What `--consumer` takes."""
    title: str
    """For people."""
    formats: tuple[str, ...]
    """Element formats that it takes."""
    layouts: tuple[str, ...]
    """Layouts of scales that it takes, of records.LAYOUTS."""
    blocks: tuple[Block, ...] = ()
    """Lines x columns of a block; empty: any."""
    encodings: tuple[str, ...] = ()
    """What a scale is stored as; empty: any."""
    power_of_two: bool = False
    """Whether scales have to be powers of two."""
    whole_blocks: bool = False
    """Whether no rank may hold a part of a block."""
    lines_multiple: int = 1
    columns_multiple: int = 1
    about: str = ""
    """What no file can tell; empty: nothing."""


@cache
def consumers() -> Mapping[str, Consumer]:
    """All that are known, by name."""
    text = (resources.files("fp8debug.analysis.checkpoint") / "consumers.toml").read_text("utf-8")
    return {name: _consumer(name, entry) for name, entry in tomllib.loads(text).items()}


def consumer_named(name: str) -> Consumer:
    """The consumer of that name.

    Raises:
        UsageError: there is none.
    """
    known = consumers()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise UsageError(f"--consumer {name}: no such consumer; {hint}expected one of {', '.join(known)}")
    return known[name]


def _consumer(name: str, entry: Mapping[str, Any]) -> Consumer:
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    given["blocks"] = tuple((lines, columns) for lines, columns in entry.get("blocks", ()))
    return Consumer(name, **given)
