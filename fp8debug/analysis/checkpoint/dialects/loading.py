"""The dialects that are known: the .toml files beside this module."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from fp8debug.analysis.checkpoint.dialects.dialect import Dialect, dialect_from
from fp8debug.errors import UsageError, nearest


@cache
def dialects() -> Mapping[str, Dialect]:
    """All that are known, by name, those of lower rank first."""
    folder = resources.files("fp8debug.analysis.checkpoint.dialects")
    files = {file.name: tomllib.loads(file.read_text("utf-8")) for file in folder.iterdir() if _is_data(file.name)}
    shared = {name: dialect_from(files[f"{name}.toml"], {}).scales for name in _INCLUDED}
    made = [dialect_from(files[name], shared) for name in sorted(files)]
    return {one.name: one for one in sorted(made, key=lambda one: one.rank)}


def dialect_named(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        UsageError: there is none.
    """
    known = dialects()
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        raise UsageError(f"--as {name}: no such dialect; {hint}expected one of {', '.join(known)}")
    return known[name]


_INCLUDED = ("activations",)
"""Files whose scales others include."""


def _is_data(name: str) -> bool:
    return name.endswith(".toml")
