"""What a folder holds of checkpoints, and words for a folder that holds none."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.errors import Fp8DebugError, nearest, some

TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_BESIDE_A_MODEL = ("training_args*", "optimizer*", "scheduler*", "rng_state*", "scaler*", "random_states*")
"""What trainers save with torch beside the weights."""
_EXPECTED = (
    "expected a .safetensors file, a folder of them, a torch.distributed.checkpoint folder (.metadata and .distcp "
    "files), or a .pt, .pth or .bin file"
)
_MOST_FOLDERS, _MOST_SHOWN, _DEPTH = 1000, 12, 3
"""Folders that are looked into for checkpoints to name, folders that are named, and how deep they may lie."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Names of the files of a folder that may be of a checkpoint, sorted, and of all that is in it."""

    names: tuple[str, ...]
    folders: tuple[str, ...]
    is_distributed: bool
    indices: tuple[str, ...]
    safetensors: tuple[str, ...]
    torch_files: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path) -> Listing | None:
        """Look into a folder; None: there is no such folder.

        Raises:
            Fp8DebugError: it may not be looked into.
        """
        try:
            with os.scandir(folder) as entries:
                found = sorted((entry.name, _is_folder(entry)) for entry in entries)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        except OSError as error:
            raise Fp8DebugError(f"cannot read {short(str(folder))}: {error.strerror or error}") from error
        files = [name for name, is_folder in found if not is_folder]
        safetensors = tuple(name for name in files if name.endswith(".safetensors") and not name.startswith("."))
        return cls(
            names=tuple(name for name, _ in found),
            folders=tuple(name for name, is_folder in found if is_folder),
            is_distributed=any(name.endswith(".distcp") or (name == ".metadata" and not safetensors) for name in files),
            indices=_indices(files, safetensors),
            safetensors=safetensors,
            torch_files=tuple(filter(_is_torch_model, files)),
        )

    @property
    def is_checkpoint(self) -> bool:
        """Whether any of it is of a checkpoint."""
        return self.is_distributed or bool(self.indices or self.safetensors or self.torch_files)


def is_index(name: str) -> bool:
    """Whether a file is named like the index of a sharded checkpoint, variants (`.index.fp16.json`) included."""
    return fnmatch(name, "*.safetensors.index*.json") or fnmatch(name, "*.bin.index*.json")


def checkpoints_below(folder: Path) -> list[Path]:
    """Folders below one that hold checkpoints, nearest first: some where there are many."""
    return list(islice(_search(folder), _MOST_SHOWN))


def nothing_in(folder: Path, found: Listing) -> str:
    """A sentence about a folder without a checkpoint."""
    if not found.names:
        return f"{folder} is empty; {_EXPECTED}"
    shown = [name for name in found.names if not name.startswith(".")] or found.names
    return f"{folder} holds no checkpoint, but {some(shown)}; {_EXPECTED}"


def nothing_at(path: Path) -> str:
    """A sentence about a path where nothing is, or something else than a file or a folder."""
    if os.path.lexists(path):
        what = "a link to nothing" if path.is_symlink() and not path.exists() else "neither a file nor a folder"
        return f"{short(str(path))} is {what}; {_EXPECTED}"
    try:
        names = os.listdir(path.parent)
    except (OSError, ValueError):
        names = []
    near = nearest(path.name, names)
    hint = f"did you mean {' or '.join(short(str(path.parent / name)) for name in near)}? " if near else ""
    return f"no such file or folder on this machine: {short(str(path))}; {hint}{_EXPECTED}"


def _search(top: Path) -> Iterator[Path]:
    waiting = deque([(top, 0)])
    looked = 0
    while waiting and looked < _MOST_FOLDERS:
        folder, depth = waiting.popleft()
        looked += 1
        try:
            found = Listing.of(folder)
        except Fp8DebugError:
            continue
        if found is None:
            continue
        if depth and found.is_checkpoint:
            yield folder
        elif depth < _DEPTH:
            waiting.extend((folder / name, depth + 1) for name in found.folders if not name.startswith("."))


def _indices(files: list[str], safetensors: tuple[str, ...]) -> tuple[str, ...]:
    """Those of safetensors files; else those of torch's: a model is often there in both."""
    indices = tuple(filter(is_index, files))
    if safetensors:
        return tuple(name for name in indices if ".safetensors." in name)
    return indices


def _is_torch_model(name: str) -> bool:
    return name.endswith(TORCH_ENDINGS) and not any(fnmatch(name, pattern) for pattern in _BESIDE_A_MODEL)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
