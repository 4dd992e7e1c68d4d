"""Indices of sharded checkpoints: JSON files that say which tensor is in which file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import listed, short
from fp8debug.analysis.checkpoint.store.documents import Repeating, is_text, json_kind, parse_strict
from fp8debug.errors import Fp8DebugError, some
from fp8debug.reading import read_bytes

LARGEST_INDEX = 100_000_000
"""Bytes: ten times that of a model of 90,000 tensors."""


@dataclass(frozen=True, slots=True)
class Index:
    """What an index file says."""

    name: str
    """Of the file."""
    file_of: Mapping[str, str]
    """File by tensor, relative to the folder; none leads out of it."""
    files: tuple[str, ...]
    """The files that it names, each once, in its order."""


def read_index(file: Path) -> Index:
    """Read which tensor is in which file.

    Raises:
        Fp8DebugError: it is no index, names nothing, a tensor twice, or a file outside of its folder.
    """
    content = _content(file)
    places = content.get("weight_map") if isinstance(content, dict) else content
    if not isinstance(places, dict):
        raise Fp8DebugError(
            f"{file} is no index of a checkpoint: its weight_map is {json_kind(places)}; expected an object that gives "
            f"the file of each tensor"
        )
    if isinstance(places, Repeating):
        raise Fp8DebugError(f"{file} is damaged: it names tensor {short(places.repeated)} twice; expected it once")
    if odd := next((name for name in places if not is_text(name)), None):
        raise Fp8DebugError(f"{file} is damaged: a name in it, {short(odd)}, holds half a character")
    files = _files(file, places)
    if not files:
        raise Fp8DebugError(f"{file} names no file; expected the file of each tensor; fetch or write it again")
    return Index(file.name, places, files)


def stays_inside(name: object) -> TypeGuard[str]:
    """Whether a name in an index is that of a file in its folder, or below it."""
    if not is_text(name) or not name or "\\" in name or not name.isprintable():
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def differences(index: Index, missing: Sequence[str], tensors: Mapping[str, Stored]) -> list[str]:
    """Sentences about what an index says and the files do not, and the reverse.

    Args:
        index: what it says.
        missing: files that it names and that are not there.
        tensors: what the others hold.
    """
    absent = set(missing)
    unread = [(name, file) for name, file in index.file_of.items() if name not in tensors]
    lost = [name for name, file in unread if file in absent]
    lacking = [name for name, file in unread if file not in absent]
    elsewhere = [name for name, stored in tensors.items() if stored.file != index.file_of.get(name, stored.file)]
    extra = [name for name in tensors if name not in index.file_of]
    told = []
    if missing:
        told.append(
            f"{len(missing):,} of {len(index.files):,} files missing: {some(missing)}; {index.name} places there, and "
            f"not read: {listed(lost)}"
        )
    if lacking:
        told.append(f"in {index.name} and not in the files that it names: {listed(lacking)}")
    if elsewhere:
        told.append(f"in another file than {index.name} says: {listed(elsewhere)}")
    if extra:
        told.append(f"in the files and not in {index.name}, read all the same: {listed(extra)}")
    return told


def _content(file: Path) -> Any:
    try:
        size = file.stat().st_size
        if size > LARGEST_INDEX:
            raise Fp8DebugError(f"{file} has {size:,} bytes; expected an index of at most {LARGEST_INDEX:,}")
        return parse_strict(read_bytes(file))
    except OSError as error:
        raise Fp8DebugError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise Fp8DebugError(f"{file} is no index of a checkpoint: {error}; fetch or write it again") from error


def _files(file: Path, places: Mapping[str, Any]) -> tuple[str, ...]:
    """Each file once, all of them checked."""
    checked: dict[str, None] = {}
    for name in places.values():
        if isinstance(name, str) and name in checked:
            continue
        if not stays_inside(name):
            shown = short(name) if isinstance(name, str) else json_kind(name)
            raise Fp8DebugError(
                f"{file} names {shown} as a file; expected names of files in its folder, and nothing outside of it is "
                f"read"
            )
        checked[name] = None
    return tuple(checked)
