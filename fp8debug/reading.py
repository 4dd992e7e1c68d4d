"""What others have written: texts read whole, documents parsed, and held against the types that they should have."""

from __future__ import annotations

import errno
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8") -> str:
    """The text of a file, read as `read_bytes` does; line ends become line feeds.

    Raises:
        OSError: it cannot be read, or no file can have such a name.
        UnicodeDecodeError: it is not of that encoding.
    """
    return read_bytes(path).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file. A named pipe that nobody writes to is empty: it is not waited for.

    Raises:
        OSError: it cannot be read, or no file can have such a name.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the name
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), os.fspath(path)) from error
    with open(file, "rb") as opened:
        os.set_blocking(file, True)
        return opened.read()


def is_file(path: Path) -> bool:
    """Whether there is a file; False also where no file can have such a name, or links lead in a circle."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def parse_json(text: str | bytes) -> Any:
    """A JSON document.

    Raises:
        ValueError: it is none, or is nested too deep to be one of ours.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def parse_toml(text: str) -> dict[str, Any]:
    """A TOML document.

    Raises:
        ValueError: it is none, or is nested too deep to be one of ours.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def known_fields(kind: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of a JSON object that are fields of the dataclass `kind`; others are left out.

    Lists are not looked into where their items are dataclasses.

    Raises:
        TypeError: a value is of another type than the field, or `raw` is no object.
    """
    if not isinstance(raw, Mapping):
        raise TypeError(f"got {_shown(raw)}, expected an object")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable, whatever its metaclass may say
    known = {key: value for key, value in raw.items() if key in hints}
    for name, value in known.items():
        if not _fits(value, hints[name]):
            raise TypeError(f"{name} is {_shown(value)}, expected {_word(hints[name])}")
    return known


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _fits(value: object, hint: Any) -> bool:
    if hint is str:
        return isinstance(value, str) and (value.isascii() or _encodes(value))
    if hint is bool or hint is Any:
        return hint is Any or isinstance(value, bool)
    if hint is int:  # of 64 bits, as the tables have it
        return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inside)
    if origin is list:
        return isinstance(value, list) and (is_dataclass(inside[0]) or all(_fits(item, inside[0]) for item in value))
    if origin is tuple:  # of JSON, which has lists
        return isinstance(value, (list, tuple)) and all(_fits(item, inside[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(v, inside[1]) for v in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return value is None if hint is type(None) else isinstance(value, hint)


def _encodes(text: str) -> bool:
    """Whether it is text at all: JSON can spell halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _word(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
