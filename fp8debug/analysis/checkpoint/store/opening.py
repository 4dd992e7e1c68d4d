"""From a path to the store that reads it."""

from __future__ import annotations

from pathlib import Path

from fp8debug.analysis.checkpoint.store.base import Store
from fp8debug.analysis.checkpoint.store.documents import read_configs
from fp8debug.analysis.checkpoint.store.folders import (
    TORCH_ENDINGS,
    Listing,
    checkpoints_below,
    is_index,
    nothing_at,
    nothing_in,
)
from fp8debug.analysis.checkpoint.store.kinds import begins_as_torch_file
from fp8debug.analysis.checkpoint.store.safetensors import SafetensorsStore
from fp8debug.analysis.checkpoint.store.sharded import files_beside, open_sharded, open_together
from fp8debug.analysis.checkpoint.store.unfolding import unfold_extra_states
from fp8debug.errors import Fp8DebugError, UsageError, escape, some
from fp8debug.reading import is_file

CONFIGS = ("config.json", "hf_quant_config.json", "quantization_config.json", "quantize_config.json")


def open_store(path: str | Path) -> Store:
    """Open a checkpoint: headers alone are read.

    Args:
        path: a safetensors file, the index of several, a folder of either, a torch.distributed.checkpoint folder, or
            a file of torch.save.

    Raises:
        Fp8DebugError: there is none, it is damaged, or it is of a kind that is not read.
        UsageError: there are several; the message names them.
    """
    if "://" in str(path):
        raise UsageError(f"{path} is an URL, and checkpoints are read from this machine alone; copy it here first")
    path = Path(path)
    store = unfold_extra_states(_open_file(path) if is_file(path) else _open_folder(path))
    if not store.tensors and not store.problems:
        store.problems = (f"there is no tensor in {path}",)
    return store


def _open_file(path: Path) -> Store:
    if is_index(path.name):
        return open_sharded(path, *read_configs(path.parent, CONFIGS))
    if path.name == ".metadata" or path.suffix == ".distcp":
        return _distributed(path.parent)
    if path.suffix == ".json":
        raise UsageError(f"{path} tells about a checkpoint and holds no tensors; give its folder, {path.parent}")
    is_of_torch = path.suffix in TORCH_ENDINGS and begins_as_torch_file(path)
    store = _torch_file(path) if is_of_torch else _safetensors_file(path)
    if n_beside := files_beside(path):
        told = f"{escape(path.name)} is one of {n_beside + 1:,} files of a checkpoint, and no other was read"
        store.problems = (*store.problems, told)
    return store


def _open_folder(folder: Path) -> Store:
    found = Listing.of(folder)
    if found is None:
        raise Fp8DebugError(nothing_at(folder))
    if found.is_distributed:
        return _distributed(folder)
    if len(found.indices) > 1:
        raise UsageError(
            f"{folder} has the indices of {len(found.indices)} checkpoints: {some(found.indices)}; give the one that "
            f"is meant, such as {folder / found.indices[0]}"
        )
    if found.indices:
        return open_sharded(folder / found.indices[0], *read_configs(folder, CONFIGS))
    if found.safetensors:
        return open_together(folder, found.safetensors, *read_configs(folder, CONFIGS))
    if len(found.torch_files) == 1:
        return _torch_file(folder / found.torch_files[0])
    if found.torch_files:
        raise UsageError(
            f"{folder} holds {len(found.torch_files):,} files of torch.save: {some(found.torch_files)}; give one of "
            f"them, such as {folder / found.torch_files[0]}"
        )
    if below := checkpoints_below(folder):
        raise UsageError(
            f"{folder} itself holds no checkpoint, and folders in it do; give one of them: "
            f"{', '.join(str(one) for one in below)}"
        )
    raise Fp8DebugError(nothing_in(folder, found))


def _safetensors_file(path: Path) -> Store:
    configs, problems = read_configs(path.parent, CONFIGS)
    return SafetensorsStore(path, [(path, escape(path.name))], configs, problems)


def _distributed(folder: Path) -> Store:
    from fp8debug.analysis.checkpoint.store.distributed import open_distributed

    return open_distributed(folder, *read_configs(folder, CONFIGS))


def _torch_file(path: Path) -> Store:
    from fp8debug.analysis.checkpoint.store.torch_file import open_torch_file

    configs, problems = read_configs(path.parent, CONFIGS)
    store = open_torch_file(path, configs)
    store.problems = (*problems, *store.problems)
    return store
