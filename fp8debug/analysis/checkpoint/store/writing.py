"""Writing safetensors files: tensors stream through, and a file appears under its name when it is whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import BITS, n_bytes_of
from fp8debug.errors import Fp8DebugError, UsageError, some
from fp8debug.storage.local import LocalStorage

SHARD_BYTES = 5_000_000_000
"""Of one file of a sharded checkpoint, as writers of large models have it."""
INDEX_NAME = "model.safetensors.index.json"
_ALIGNMENT = 8

Chunk = bytes | bytearray | memoryview | npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class WrittenTensor:
    """A tensor that is to be written."""

    name: str
    dtype: str
    """In the spelling of safetensors, a key of BITS."""
    shape: tuple[int, ...]
    """Counts values, also those that are smaller than a byte."""
    chunks: Callable[[], Iterable[Chunk]]
    """Gives its bytes in row-major order, in pieces of any size: bytes, or arrays of any dtype; called once."""

    @property
    def n_bytes(self) -> int:
        """Bytes that it takes."""
        return n_bytes_of(Stored(self.name, self.dtype, self.shape, ""))


def write_safetensors(
    path: str | Path, tensors: Iterable[WrittenTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a file; tensors of wide elements come first, so that each begins at a multiple of its element.

    Args:
        path: of the file, which is replaced if it is there; its folder is made.
        tensors: what is written, in any order.
        metadata: texts for the header.

    Raises:
        ValueError: a name stands twice, or chunks give another number of bytes than dtype and shape say.
        Fp8DebugError: the file cannot be written.
    """
    path = Path(path)
    placed = sorted(tensors, key=lambda tensor: -BITS[tensor.dtype])
    _check_names(placed)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with LocalStorage(path.parent).writing(path.name) as file:
            file.write(_header(placed, metadata))
            for tensor in placed:
                _write_tensor(file, tensor)
    except OSError as error:
        raise Fp8DebugError(
            f"cannot write {path}: {error.strerror or error}; make room there, or write elsewhere"
        ) from error


def write_sharded(
    folder: str | Path,
    tensors: Iterable[WrittenTensor],
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, str] | None = None,
) -> tuple[Path, ...]:
    """Write the files of a checkpoint and their index, which comes last; one file and no index where that is enough.

    Args:
        folder: is made; holds no safetensors file yet.
        tensors: what is written; files get them in this order.
        shard_bytes: most bytes of tensors in a file; a larger tensor has a file of its own.
        metadata: texts for the header of each file.

    Returns:
        The files, without the index.

    Raises:
        ValueError: as `write_safetensors`.
        UsageError: the folder holds a checkpoint.
        Fp8DebugError: a file cannot be written.
    """
    folder = Path(folder)
    if there := sorted(file.name for file in folder.glob("*.safetensors*")):
        raise UsageError(
            f"{folder} holds a checkpoint already: {some(there)}; give a folder that is empty or not there"
        )
    listed = list(tensors)
    _check_names(listed)
    shards = _shards(listed, shard_bytes)
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_safetensors(folder / name, shard, metadata)
    if len(shards) > 1:
        _write_index(folder, dict(zip(names, shards, strict=True)))
    return tuple(folder / name for name in names)


def _check_names(tensors: Sequence[WrittenTensor]) -> None:
    names = [tensor.name for tensor in tensors]
    if len(set(names)) < len(names) or "__metadata__" in names:
        raise ValueError(f"names of tensors: expected each once, and none __metadata__; got {sorted(names)}")


def _header(placed: Sequence[WrittenTensor], metadata: Mapping[str, str] | None) -> bytes:
    """Length, JSON, and blanks up to a multiple of eight bytes."""
    ends = list(accumulate((tensor.n_bytes for tensor in placed), initial=0))
    declared: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for tensor, first, last in zip(placed, ends, ends[1:], strict=False):
        declared[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [first, last]}
    text = json.dumps(declared, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return struct.pack("<Q", len(text)) + text


def _write_tensor(file: IO[bytes], tensor: WrittenTensor) -> None:
    n = 0
    for chunk in tensor.chunks():
        # numpy's own view of bytes: arrays of ml_dtypes have no buffer that others understand.
        part = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8) if isinstance(chunk, np.ndarray) else chunk
        n += file.write(part.data if isinstance(part, np.ndarray) else part)
    if n != tensor.n_bytes:
        raise ValueError(f"tensor {tensor.name}: got {n} bytes, expected {tensor.n_bytes}")


def _shards(tensors: Sequence[WrittenTensor], shard_bytes: int) -> list[list[WrittenTensor]]:
    shards: list[list[WrittenTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.n_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.n_bytes
    return shards


def _write_index(folder: Path, shards: Mapping[str, Sequence[WrittenTensor]]) -> None:
    total = sum(tensor.n_bytes for shard in shards.values() for tensor in shard)
    places = {tensor.name: name for name, shard in shards.items() for tensor in shard}
    text = json.dumps({"metadata": {"total_size": total}, "weight_map": places}, indent=2, ensure_ascii=False)
    try:
        LocalStorage(folder).replace(INDEX_NAME, text.encode())
    except OSError as error:
        raise Fp8DebugError(f"cannot write {folder / INDEX_NAME}: {error.strerror or error}") from error
