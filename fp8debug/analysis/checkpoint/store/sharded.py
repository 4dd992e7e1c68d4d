"""Checkpoints of several files, with an index of which tensor is where, or without one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.store.base import Store
from fp8debug.analysis.checkpoint.store.folders import TORCH_ENDINGS
from fp8debug.analysis.checkpoint.store.index import Index, differences, read_index
from fp8debug.analysis.checkpoint.store.joined import JoinedStore
from fp8debug.analysis.checkpoint.store.safetensors import SafetensorsStore
from fp8debug.errors import Fp8DebugError, escape, some
from fp8debug.reading import is_file

_NUMBERED = re.compile(r"(.*?)-?(\d{4,6})-of-(\d{4,6})(.*)\.(?:safetensors|bin|pt|pth)", re.DOTALL)

Configs = Mapping[str, Mapping[str, Any]]


def open_sharded(index_file: Path, configs: Configs, problems: Sequence[str]) -> Store:
    """Open the files that an index names; those that are missing are a problem.

    Raises:
        Fp8DebugError: the index or a file is damaged, the index leads out of its folder, or all files are missing.
    """
    folder = index_file.parent
    index = read_index(index_file)
    here = [name for name in index.files if is_file(folder / name)]
    missing = sorted(set(index.files) - set(here))
    if not here:
        raise Fp8DebugError(
            f"no file that {index_file} names is there: {some(missing)}; fetch them, or give the folder that holds them"
        )
    store = _open_files(folder, here, configs, problems, index)
    store.problems += tuple(differences(index, missing, store.tensors))
    store.lost = {name: file for name, file in index.file_of.items() if name not in store.tensors}
    ending = Path(here[0]).suffix
    unnamed = sorted({file.name for file in folder.glob(f"*{ending}")} - set(index.files))
    if unnamed and ending == ".safetensors":
        store.problems += (f"{index.name} does not name {some(list(map(escape, unnamed)))}; not read",)
    return store


def open_together(folder: Path, names: Sequence[str], configs: Configs, problems: Sequence[str]) -> Store:
    """Open safetensors files that no index tells about as one checkpoint.

    Raises:
        Fp8DebugError: a file is damaged, or two hold tensors of the same name.
    """
    store = SafetensorsStore(folder, [(folder / name, escape(name)) for name in names], configs, problems)
    store.problems += tuple(_gaps(names))
    return store


def files_beside(file: Path) -> int:
    """How many files hold the rest of the checkpoint that a file is part of; 0: it is alone, or nothing says so."""
    for index in file.parent.glob("*.index*.json"):
        try:
            files = read_index(index).files
        except Fp8DebugError:  # of a file that was not asked for
            continue
        if file.name in files:
            return len(files) - 1
    numbered = _NUMBERED.fullmatch(file.name)
    return max(0, int(numbered[3]) - 1) if numbered else 0


def _open_files(folder: Path, names: Sequence[str], configs: Configs, problems: Sequence[str], index: Index) -> Store:
    if not all(name.endswith(TORCH_ENDINGS) for name in names):
        return SafetensorsStore(folder, [(folder / name, name) for name in names], configs, problems, index.file_of)
    from fp8debug.analysis.checkpoint.store.torch_file import open_torch_file

    parts = {name: open_torch_file(folder / name) for name in names}
    return JoinedStore(folder, parts, configs, problems, index.file_of)


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
