"""Files of torch.save, written without torch: a zip archive of one pickle and the bytes of each storage.

The pickle is put together from opcodes: what it names is only known where it is read.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from pathlib import Path

import numpy as np

from fp8debug.analysis.checkpoint.store.writing import WrittenTensor

STORAGES = {
    "F64": "DoubleStorage", "F32": "FloatStorage", "F16": "HalfStorage", "BF16": "BFloat16Storage",
    "I64": "LongStorage", "I32": "IntStorage", "I16": "ShortStorage", "I8": "CharStorage", "U8": "ByteStorage",
    "BOOL": "BoolStorage",
}  # fmt: skip
"""What torch calls a storage of each dtype that is written."""

TORCH_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""torch's name of a dtype of weights."""


@dataclass(frozen=True, slots=True)
class Name:
    """Something that a module has: a function, a class, a dtype."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class Called:
    """What a function makes of its arguments."""

    function: Name
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """A new object of a class, and the state that it is given."""

    kind: Name
    state: object


def write_torch_archive(path: Path, tensors: Iterable[WrittenTensor], classes: Mapping[str, Called]) -> None:
    """Write a dict of tensors, as torch.save does.

    Args:
        path: of the file.
        tensors: what is written; those that are parts of another are named in `classes`.
        classes: entries of the dict that are no plain tensors; a `WrittenTensor` among the arguments is a part.
    """
    listed = {one.name: one for one in tensors}
    keys = {name: str(at) for at, name in enumerate(listed)}
    parts = {part.name for call in classes.values() for part in call.arguments if isinstance(part, WrittenTensor)}
    root = {name: one for name, one in listed.items() if name not in parts} | dict(classes)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02" + _pickled(root, keys) + b".")
        archive.writestr("archive/byteorder", b"little")
        for name, one in listed.items():
            with archive.open(f"archive/data/{keys[name]}", "w", force_zip64=True) as entry:
                for chunk in one.chunks():
                    entry.write(np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data)
        archive.writestr("archive/version", b"3\n")


def _pickled(value: object, keys: Mapping[str, str]) -> bytes:
    """Opcodes of protocol 2."""
    if isinstance(value, WrittenTensor):
        return _pickled(_tensor(value, keys[value.name]), keys)
    if isinstance(value, _Storage):
        return _pickled(value.persistent, keys) + b"Q"
    if isinstance(value, Name):
        return b"c%s\n%s\n" % (value.module.encode(), value.name.encode())
    if isinstance(value, Called):
        return _pickled(value.function, keys) + _pickled(value.arguments, keys) + b"R"
    if isinstance(value, Made):
        return _pickled(value.kind, keys) + b")\x81" + _pickled(value.state, keys) + b"b"
    if isinstance(value, dict):
        return b"}(" + b"".join(_pickled(one, keys) for entry in value.items() for one in entry) + b"u"
    if isinstance(value, tuple):
        return b"(" + b"".join(_pickled(one, keys) for one in value) + b"t"
    return _atom(value)


def _atom(value: object) -> bytes:
    if value is None or isinstance(value, bool):
        return {None: b"N", True: b"\x88", False: b"\x89"}[value]
    if isinstance(value, int):
        raw = value.to_bytes(8, "little", signed=True)
        return b"\x8a\x08" + raw
    assert isinstance(value, str)
    text = value.encode()
    return b"X" + struct.pack("<I", len(text)) + text


@dataclass(frozen=True, slots=True)
class _Storage:
    """A storage, which lies outside of the pickle."""

    persistent: tuple[object, ...]


def _tensor(one: WrittenTensor, key: str) -> Called:
    storage = _Storage(("storage", Name("torch", STORAGES[one.dtype]), key, "cpu", prod(one.shape)))
    strides = tuple(accumulate(reversed(one.shape[1:]), mul, initial=1))[::-1] if one.shape else ()
    hooks = Called(Name("collections", "OrderedDict"), ())
    return Called(Name("torch._utils", "_rebuild_tensor_v2"), (storage, 0, one.shape, strides, False, hooks))
