"""Checkpoints of several safetensors files, with an index of which tensor is where, or without one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard

from fp8debug.analysis.checkpoint.store.base import listed, short
from fp8debug.analysis.checkpoint.store.documents import Repeating, is_text, json_kind, parse_strict
from fp8debug.analysis.checkpoint.store.header import LONGEST_HEADER
from fp8debug.analysis.checkpoint.store.safetensors import SafetensorsStore
from fp8debug.errors import Fp8DebugError, escape, some
from fp8debug.reading import is_file, read_bytes

_NUMBERED = re.compile(r"(.*?)-?(\d{4,6})-of-(\d{4,6})(.*)\.safetensors", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Index:
    """What an index file says."""

    file_of: Mapping[str, str]
    """File by tensor, relative to the folder; none leads out of it."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it names, each once, in its order."""
        return tuple(dict.fromkeys(self.file_of.values()))


def open_sharded(
    index_file: Path, configs: Mapping[str, Mapping[str, Any]], problems: Sequence[str]
) -> SafetensorsStore:
    """Open the files that an index names; those that are missing are a problem.

    Raises:
        Fp8DebugError: the index or a file is damaged, the index leads out of its folder, or all files are missing.
    """
    folder = index_file.parent
    index = read_index(index_file)
    here = [name for name in index.files if is_file(folder / name)]
    missing = sorted(set(index.files) - set(here))
    if not index.files:
        raise Fp8DebugError(f"{index_file} names no file; expected the file of each tensor; fetch or write it again")
    if not here:
        raise Fp8DebugError(
            f"no file that {index_file} names is there: {some(missing)}; fetch them, or give the folder that holds them"
        )
    store = SafetensorsStore(folder, [(folder / name, name) for name in here], configs, problems, index.file_of)
    store.problems += tuple(_differences(index_file.name, index, missing, store))
    unnamed = sorted(file.name for file in folder.glob("*.safetensors") if file.name not in index.files)
    if unnamed:
        store.problems += (f"{index_file.name} does not name {some(unnamed)}; not read",)
    return store


def open_together(
    folder: Path, names: Sequence[str], configs: Mapping[str, Mapping[str, Any]], problems: Sequence[str]
) -> SafetensorsStore:
    """Open files that no index tells about as one checkpoint.

    Raises:
        Fp8DebugError: a file is damaged, or two hold tensors of the same name.
    """
    store = SafetensorsStore(folder, [(folder / name, escape(name)) for name in names], configs, problems)
    store.problems += tuple(_gaps(names))
    return store


def files_beside(file: Path) -> int:
    """How many files hold the rest of the checkpoint that a file is part of; 0: it is alone, or nothing says so."""
    for index in file.parent.glob("*.safetensors.index*.json"):
        try:
            files = read_index(index).files
        except Fp8DebugError:  # of a file that was not asked for
            continue
        if file.name in files:
            return len(files) - 1
    numbered = _NUMBERED.fullmatch(file.name)
    return max(0, int(numbered[3]) - 1) if numbered else 0


def read_index(file: Path) -> Index:
    """Read which tensor is in which file.

    Raises:
        Fp8DebugError: it is no index, names a tensor twice, or a file outside of its folder.
    """
    try:
        size = file.stat().st_size
        if size > LONGEST_HEADER:
            raise Fp8DebugError(f"{file} has {size:,} bytes; expected an index of at most {LONGEST_HEADER:,}")
        content = parse_strict(read_bytes(file))
    except OSError as error:
        raise Fp8DebugError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise Fp8DebugError(f"{file} is no index of a checkpoint: {error}; fetch or write it again") from error
    places = content.get("weight_map") if isinstance(content, dict) else content
    if not isinstance(places, dict):
        raise Fp8DebugError(
            f"{file} is no index of a checkpoint: its weight_map is {json_kind(places)}; expected an object that gives "
            f"the file of each tensor"
        )
    if isinstance(places, Repeating):
        raise Fp8DebugError(f"{file} is damaged: it names tensor {short(places.repeated)} twice; expected it once")
    checked: set[str] = set()
    for name in places.values():
        if isinstance(name, str) and name in checked:
            continue
        if not stays_inside(name):
            shown = short(name) if isinstance(name, str) else json_kind(name)
            raise Fp8DebugError(
                f"{file} names {shown} as a file; expected names of files in its folder, and nothing outside of it is "
                f"read"
            )
        checked.add(name)
    if odd := next((name for name in places if not is_text(name)), None):
        raise Fp8DebugError(f"{file} is damaged: a name in it, {short(odd)}, holds half a character")
    return Index(places)


def stays_inside(name: object) -> TypeGuard[str]:
    """Whether a name in an index is that of a file in its folder, or below it."""
    if not is_text(name) or not name or "\\" in name or not name.isprintable():
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def _differences(index_name: str, index: Index, missing: Sequence[str], store: SafetensorsStore) -> list[str]:
    """Sentences about what the index says and the files do not, and the reverse."""
    absent = set(missing)
    lost = [name for name, file in index.file_of.items() if file in absent and name not in store.tensors]
    lacking = [name for name, file in index.file_of.items() if file not in absent and name not in store.tensors]
    elsewhere = [name for name, stored in store.tensors.items() if stored.file != index.file_of.get(name, stored.file)]
    extra = [name for name in store.tensors if name not in index.file_of]
    told = []
    if missing:
        told.append(
            f"{len(missing):,} of {len(index.files):,} files missing: {some(missing)}; {index_name} places there, and "
            f"not read: {listed(lost)}"
        )
    if lacking:
        told.append(f"in {index_name} and not in the files that it names: {listed(lacking)}")
    if elsewhere:
        told.append(f"in another file than {index_name} says: {listed(elsewhere)}")
    if extra:
        told.append(f"in the files and not in {index_name}, read all the same: {listed(extra)}")
    return told


def _gaps(names: Sequence[str]) -> list[str]:
    """Sentences about numbered files, `model-00001-of-00004.safetensors`, of which some are missing."""
    groups: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            before, number, total, after = match.groups()
            groups.setdefault((before, total, after), set()).add(int(number))
    return [
        f"{escape(before)}-…-of-{total}{escape(after)}.safetensors: {len(there):,} of {int(total):,} files are there, "
        f"and no index tells what is in the others"
        for (before, total, after), there in groups.items()
        if len(there) < int(total)
    ]
