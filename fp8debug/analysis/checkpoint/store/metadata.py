"""The `.metadata` of a torch.distributed.checkpoint folder: a pickle that says which piece of a tensor is where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fp8debug.analysis.checkpoint.store.archive import LONGEST_PICKLE
from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.analysis.checkpoint.store.documents import is_text
from fp8debug.analysis.checkpoint.store.index import stays_inside
from fp8debug.analysis.checkpoint.store.pickled import Call, interpret
from fp8debug.analysis.checkpoint.store.rebuilt import dtype_of, numbers_of
from fp8debug.errors import Fp8DebugError
from fp8debug.reading import read_bytes

METADATA = ".metadata"
"""Name of the file."""
MOST_PIECES = 3_000_000
Offsets = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """A block of a tensor that one rank wrote."""

    offsets: Offsets
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where something was written."""

    file: str
    """Relative to the folder."""
    first: int
    size: int
    """Bytes."""
    transforms: tuple[str, ...]
    """What was done to the bytes, such as compression."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A tensor as the metadata declares it."""

    dtype: str | None
    """None: one that is not read."""
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class DistributedMetadata:
    """What was saved."""

    tensors: Mapping[str, Declared]
    objects: tuple[str, ...]
    """Names of what is no tensor."""
    slots: Mapping[tuple[str, Offsets | None], Slot]
    """By name and offsets of the piece; None: of an object."""


def read_metadata(file: Path) -> DistributedMetadata:
    """Read it, nothing unpickled.

    Raises:
        Fp8DebugError: it is damaged, or names files outside of its folder.
    """
    try:
        size = file.stat().st_size
        if size > LONGEST_PICKLE:
            raise Fp8DebugError(f"{file} has {size:,} bytes; expected at most {LONGEST_PICKLE:,}")
        root = interpret(read_bytes(file), str(file))
    except OSError as error:
        raise Fp8DebugError(f"cannot read {file}: {error.strerror or error}") from error
    state = _state(root, "Metadata")
    declared, stored = (state or {}).get("state_dict_metadata"), (state or {}).get("storage_data")
    if not isinstance(declared, dict):
        raise Fp8DebugError(_damaged(file, "it does not say which tensors there are"))
    if not isinstance(stored, dict):
        raise Fp8DebugError(_damaged(file, "it does not say where tensors are"))
    tensors: dict[str, Declared] = {}
    objects: list[str] = []
    n_pieces = 0
    for name, what in declared.items():
        if not is_text(name):
            raise Fp8DebugError(_damaged(file, "a name of a tensor is no text"))
        one = _state(what, "TensorStorageMetadata")
        if one is None:
            objects.append(name)
        else:
            tensors[name] = _declared(file, name, one)
            n_pieces += len(tensors[name].chunks)
        if n_pieces > MOST_PIECES:
            raise Fp8DebugError(
                f"{file} declares more than {MOST_PIECES:,} pieces of tensors; no checkpoint has as many"
            )
    return DistributedMetadata(tensors, tuple(objects), dict(_slot(file, *entry) for entry in stored.items()))


def _damaged(file: Path, reason: str) -> str:
    return (
        f"{file} is no metadata of torch.distributed.checkpoint, or damaged: {reason}; fetch or write the checkpoint "
        f"again"
    )


def _state(value: object, name: str) -> Mapping[object, object] | None:
    """Attributes of an instance of a class of that name; None: it is none."""
    if isinstance(value, Call) and value.path.rpartition(".")[2] == name:
        return value.state if isinstance(value.state, dict) else {}
    return None


def _declared(file: Path, name: str, state: Mapping[object, object]) -> Declared:
    shape, chunks = numbers_of(state.get("size")), state.get("chunks")
    if shape is None or not isinstance(chunks, list):
        raise Fp8DebugError(_damaged(file, f"tensor {short(name)} has no shape"))
    found: dict[Chunk, None] = {}
    for chunk in chunks:
        one = _state(chunk, "ChunkStorageMetadata") or {}
        offsets, sizes = numbers_of(one.get("offsets")), numbers_of(one.get("sizes"))
        if offsets is None or sizes is None or not _is_inside(offsets, sizes, shape):
            raise Fp8DebugError(
                _damaged(file, f"a piece of tensor {short(name)} is not within its shape {list(shape)}")
            )
        if 0 not in sizes:
            found[Chunk(offsets, sizes)] = None
    properties = state.get("properties")
    values = properties.state if isinstance(properties, Call) else None
    dtype = dtype_of(values[0]) if isinstance(values, tuple) and values else None
    return Declared(dtype, shape, tuple(found))


def _is_inside(offsets: Offsets, sizes: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(offsets) == len(sizes) == len(shape) and all(
        offset + size <= whole for offset, size, whole in zip(offsets, sizes, shape, strict=True)
    )


def _slot(file: Path, key: object, value: object) -> tuple[tuple[str, Offsets | None], Slot]:
    index, info = _state(key, "MetadataIndex"), _state(value, "_StorageInfo")
    if index is None or info is None:
        raise Fp8DebugError(_damaged(file, "where something is stored is not said in a way that is known"))
    name, path, first, size = index.get("fqn"), info.get("relative_path"), info.get("offset"), info.get("length")
    if not isinstance(name, str) or not isinstance(first, int) or not isinstance(size, int) or min(first, size) < 0:
        raise Fp8DebugError(_damaged(file, "where something is stored is not said in a way that is known"))
    if not stays_inside(path):
        shown = short(path) if is_text(path) else "what is no text"
        raise Fp8DebugError(
            f"{file} names {shown} as a file; expected names of files in its folder, and nothing outside of it is read"
        )
    offsets, transforms = index.get("offset"), info.get("transform_descriptors")
    places = None if offsets is None else numbers_of(offsets)
    names = tuple(one for one in transforms if isinstance(one, str)) if isinstance(transforms, list | tuple) else ()
    return (name, places), Slot(path, first, size, names)
