"""Engines by the words of the command line: `duckdb`, `ray`, `ray:ADDRESS`."""

from __future__ import annotations

from fp8debug.analysis.engine.base import Engine
from fp8debug.analysis.engine.local import DuckDBEngine
from fp8debug.errors import UsageError, nearest

NAMES = ("duckdb", "ray")


def engine_of(text: str) -> Engine:
    """The engine that `text` names.

    Raises:
        UsageError: an unknown engine, one whose package is not installed, or no cluster at the address.
    """
    name, colon, address = text.partition(":")
    if name == "ray":
        from fp8debug.analysis.engine.on_ray import RayEngine

        if colon and not address:
            raise UsageError(f"engine {text!r}: expected an address behind the colon, such as ray:10.0.0.1:6379")
        return RayEngine(address or None)
    if text == "duckdb":
        return DuckDBEngine()
    near = nearest(name, NAMES)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise UsageError(f"unknown engine {text!r}; expected duckdb, ray or ray:ADDRESS{hint}")
