"""JSON of strangers: parsed without trust, repeated names noticed, sizes limited."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeGuard

from fp8debug.reading import is_file, read_bytes

LARGEST_CONFIG = 32 << 20
"""Bytes; lists of every expert's name in a large model take some MB."""


class Repeating(dict[str, Any]):
    """An object in which a name stood twice; readers differ in which value they take."""

    repeated: str


def parse_strict(raw: bytes) -> Any:
    """A JSON document as its standard has it: UTF-8, no NaN; objects with a name twice are `Repeating`.

    Raises:
        ValueError: it is none; the message says why.
    """
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start:,} is no UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def is_text(value: object) -> TypeGuard[str]:
    """Whether it is a text that can be written again: JSON's escapes can make halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def read_config(file: Path) -> Mapping[str, Any]:
    """A configuration beside a checkpoint; NaN and Infinity are allowed, as writers in Python leave them.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large, or no JSON object; the message says what was got.
    """
    size = file.stat().st_size
    if size > LARGEST_CONFIG:
        raise ValueError(f"it has {size:,} bytes, and at most {LARGEST_CONFIG:,} are read")
    try:
        value = json.loads(read_bytes(file).decode("utf-8-sig"))
        if not is_text(json.dumps(value, ensure_ascii=False)):
            raise ValueError("it holds half a character")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start:,} is no UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not isinstance(value, dict):
        raise ValueError(f"it holds {json_kind(value)}, not an object")
    return value


def read_configs(folder: Path, names: tuple[str, ...]) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Those of some JSON files that are in a folder, by name, and sentences about those that cannot be used."""
    read: dict[str, Mapping[str, Any]] = {}
    problems = []
    for name in names:
        if not is_file(folder / name):
            continue
        try:
            read[name] = read_config(folder / name)
        except OSError as error:
            problems.append(f"{name} cannot be read ({error.strerror or error}); it is taken as not there")
        except ValueError as error:
            problems.append(f"{name} is no usable configuration: {error}; it is taken as not there")
    return read, problems


def json_kind(value: object) -> str:
    """What a value is, for a sentence: `a list`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number"}
    return names.get(type(value), "an object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    repeating = Repeating(made)
    repeating.repeated = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
    return repeating


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"it says {word}, which is no JSON")
