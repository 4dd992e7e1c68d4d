"""Files that hold a batch: tensors by name, or one array."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fp8debug.errors import UsageError
from fp8debug.hooks.inference.batch import TOKENS, Batch, call_batch, is_whole

_FORMATS = ".safetensors, .npz, .npy, .json or .pt"


def read_batch(path: Path) -> Batch:
    """Read a batch file.

    One array is the first positional argument; named ones are keyword arguments of `forward`. One row of token ids
    becomes a batch of one. Whole numbers of any width become int64.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    readers: dict[str, Callable[[Path], object]] = {
        ".safetensors": _read_safetensors,
        ".npz": _read_numpy,
        ".npy": _read_numpy,
        ".json": _read_json,
        ".pt": _read_torch,
        ".pth": _read_torch,
    }
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UsageError(f"--batch {path}: unknown kind {path.suffix!r}; expected {_FORMATS}")
    try:
        content = reader(path)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"--batch {path}: cannot be read: {error.strerror or error}") from error
    except Exception as error:  # each reader has its own kinds of errors
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UsageError(f"--batch {path}: not a readable {path.suffix} file: {first}") from error
    if isinstance(content, Mapping):
        if not content:
            raise UsageError(f"--batch {path}: it is empty; expected tensors")
        return _named({str(name): _tensor(path, str(name), value) for name, value in content.items()})
    return Batch((_as_batch(_tensor(path, "the array", content)),))


def _named(tensors: dict[str, Tensor]) -> Batch:
    lone = [name for name in TOKENS if name in tensors and tensors[name].dim() == 1 and is_whole(tensors[name])]
    if lone:
        size = tensors[lone[0]].shape
        tensors = {name: t.unsqueeze(0) if t.shape == size else t for name, t in tensors.items()}
    return call_batch((), tensors)


def _as_batch(tensor: Tensor) -> Tensor:
    return tensor.unsqueeze(0) if tensor.dim() == 1 and is_whole(tensor) else tensor


def _tensor(path: Path, name: str, value: object) -> Tensor:
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(_array(value))
    except (TypeError, ValueError) as error:
        raise UsageError(f"--batch {path}: {name} is no array of numbers ({error}); expected a tensor") from error
    if tensor.dtype is torch.float64:
        return tensor.float()
    return tensor.long() if is_whole(tensor) else tensor


def _array(value: object) -> np.ndarray[Any, Any]:
    array = np.asarray(value)
    if array.dtype.kind not in "iufb":
        raise ValueError(f"its elements are {array.dtype}")
    return array.astype(np.int64) if array.dtype.kind == "u" else array


def _read_safetensors(path: Path) -> object:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise UsageError(f"--batch {path}: {error}; install safetensors, or give {_FORMATS}") from error
    return load_file(path)


def _read_numpy(path: Path) -> object:
    content = np.load(path, allow_pickle=False)
    return content if isinstance(content, np.ndarray) else dict(content)


def _read_json(path: Path) -> object:
    return json.loads(path.read_text(encoding="utf-8"))


def _read_torch(path: Path) -> object:
    return torch.load(path, map_location="cpu", weights_only=True)
