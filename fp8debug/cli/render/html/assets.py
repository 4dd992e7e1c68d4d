"""Styles and scripts that a page carries along, in the order in which they are read."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

_ORDER = "ORDER"
_LICENCE = "LICENSE.uPlot"


@cache
def styles() -> str:
    """All style sheets as one."""
    return "\n".join(_read(name) for name in _ordered() if name.endswith(".css"))


@cache
def scripts() -> str:
    """All scripts as one, with the licence of the one that is not ours."""
    licence = _read(_LICENCE).strip()
    parts = [f"/*\nuPlot (uPlot.iife.min.js and uPlot.min.css)\n\n{licence}\n*/"]
    parts += [_read(name) for name in _ordered() if name.endswith(".js")]
    text = "\n".join(parts)
    assert "</script" not in text.lower()
    return text


def source_hash(text: str) -> str:
    """The word of a content security policy that lets this script or style run, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


def _ordered() -> list[str]:
    return _read(_ORDER).split()


def _read(name: str) -> str:
    return (files("fp8debug.cli.render.html") / "assets" / name).read_text(encoding="utf-8")
