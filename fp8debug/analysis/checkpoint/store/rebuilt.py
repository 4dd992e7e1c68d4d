"""Tensors in pickles of torch: the calls that would rebuild them, read as dtype, shape and place in a storage."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np

from fp8debug.analysis.checkpoint.store.base import BITS
from fp8debug.analysis.checkpoint.store.pickled import Call, Global, Persistent, interpret_from
from fp8debug.analysis.checkpoint.store.strided import span
from fp8debug.formats import Uint8Array

DTYPES = {
    "float64": "F64", "double": "F64", "float32": "F32", "float": "F32", "float16": "F16", "half": "F16",
    "bfloat16": "BF16", "int64": "I64", "long": "I64", "int32": "I32", "int": "I32", "int16": "I16", "short": "I16",
    "int8": "I8", "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64", "bool": "BOOL",
    "complex64": "C64", "cfloat": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float8_e8m0fnu": "F8_E8M0",
    "float4_e2m1fn_x2": "F4",
}  # fmt: skip
"""dtypes of torch, in the spelling of `Stored`."""
_STORAGES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL", "ComplexFloatStorage": "C64",
}  # fmt: skip
_UNTYPED = "UntypedStorage"
_PLAIN = ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_tensor")
_WRAPPED = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
_MOST_AXES = 64
_LARGEST = 1 << 62
_MOST_REPEATED = 1 << 30
"""Bytes of a tensor whose elements are several times the same ones of its storage."""


class NoTensor(Exception):
    """A value looks like a tensor and cannot be read as one; its text says why."""


@dataclass(frozen=True, slots=True)
class Storage:
    """What a tensor's elements lie in."""

    key: str
    """Name of its entry in the archive."""
    dtype: str | None
    """None: bytes."""
    held: Uint8Array | None = None
    """Its bytes, where the pickle itself has them."""


@dataclass(frozen=True, slots=True)
class View:
    """A tensor in a storage."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""
    offset: int
    """In elements."""
    storage: Storage

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the storage; two 4-bit codes are one."""
        return max(1, BITS[self.dtype] // 8)

    @property
    def declared(self) -> tuple[int, ...]:
        """Its shape in values: two 4-bit codes in a byte are two."""
        return (*self.shape[:-1], 2 * self.shape[-1]) if self.dtype == "F4" and self.shape else self.shape

    @property
    def needs(self) -> int:
        """Bytes that its storage must have at least."""
        return (self.offset + span(self.shape, self.strides)) * self.itemsize if 0 not in self.shape else 0


def view_of(value: object) -> View | None:
    """The tensor that a value would be rebuilt as; None: it is no plain tensor.

    Raises:
        NoTensor: it should be one.
    """
    value = unwrapped(value)
    if not isinstance(value, Call) or value.path not in _PLAIN:
        return None
    given = value.given
    if len(given) < 4:
        raise NoTensor("its call has too few arguments")
    storage, shape, strides = _storage(given[0]), numbers_of(given[2]), numbers_of(given[3])
    offset = given[1]
    if not isinstance(offset, int) or not 0 <= offset < _LARGEST or shape is None or strides is None:
        raise NoTensor("its shape is no shape")
    if len(shape) != len(strides):
        raise NoTensor(f"it has {len(shape)} axes and {len(strides)} strides")
    dtype = dtype_of(given[6]) if value.path.endswith("_v3") and len(given) > 6 else storage.dtype
    if dtype is None:
        raise NoTensor("its dtype is not one that is read")
    metadata = given[-1] if len(given) > 6 else None
    if isinstance(metadata, dict) and (metadata.get("conj") or metadata.get("neg")):
        raise NoTensor("it is a conjugate or negative view")
    view = View(dtype, shape, strides, offset, storage)
    n = 1
    for size in shape:
        n *= size
    if n * view.itemsize > max(view.needs, _MOST_REPEATED):
        raise NoTensor("it repeats the elements of a small storage very often")
    return view


def unwrapped(value: object) -> object:
    """A value without the calls that make a tensor a parameter, or name its Python type."""
    for _ in range(4):
        if not isinstance(value, Call):
            break
        if value.path in _WRAPPED and value.given:
            value = value.given[0]
        elif value.path == _FROM_TYPE and len(value.given) >= 3 and isinstance(value.given[0], Global):
            if value.given[0].path not in _PLAIN + _WRAPPED:
                break
            value = Call(value.given[0], value.given[2])
        else:
            break
    return value


def dtype_of(value: object) -> str | None:
    """The dtype that a name stands for; None: none that is known."""
    return DTYPES.get(value.name) if isinstance(value, Global) and value.module == "torch" else None


def numbers_of(value: object) -> tuple[int, ...] | None:
    """A shape: a tuple of whole numbers or a torch.Size; None: it is none."""
    if isinstance(value, Call) and value.path == "torch.Size":
        value = value.given[0] if value.given else ()
    if not isinstance(value, tuple | list) or len(value) > _MOST_AXES:
        return None
    sizes = tuple(size for size in value if isinstance(size, int) and 0 <= size < _LARGEST)
    total = 1
    for size in sizes:
        total *= max(size, 1)
    return sizes if len(sizes) == len(value) and total < _LARGEST else None


def bytes_of(value: object, depth: int = 3) -> bytes | None:
    """Bytes, also as old protocols write them and in an io.BytesIO; None: it is something else."""
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if not isinstance(value, Call):
        return None
    given = value.given
    if value.path == "_codecs.encode" and len(given) == 2 and isinstance(given[0], str) and given[1] == "latin1":
        try:
            return given[0].encode("latin1")
        except UnicodeEncodeError:
            return None
    if value.path in ("__builtin__.bytes", "builtins.bytes", "__builtin__.bytearray", "builtins.bytearray"):
        return b"" if not given else bytes_of(given[0], depth - 1) if depth else None
    if value.path in ("_io.BytesIO", "io.BytesIO"):
        state = value.state if isinstance(value.state, tuple) and value.state else (b"",)
        return bytes_of(state[0], depth - 1) if depth else None
    return None


def _storage(value: object) -> Storage:
    if isinstance(value, Call) and value.path == "torch.storage._load_from_bytes" and value.given:
        raw = bytes_of(value.given[0])
        if raw is None:
            raise NoTensor("its storage is no bytes")
        return _storage_in(raw)
    key, dtype, _ = _identity(value)
    return Storage(key, dtype)


def _identity(value: object) -> tuple[str, str | None, int]:
    """Key, dtype and number of elements of a storage."""
    identity = value.id if isinstance(value, Persistent) else None
    if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] != "storage":
        raise NoTensor("its storage is of a kind that is not known")
    kind, key, n = identity[1], identity[2], identity[4]
    if not isinstance(kind, Global) or not isinstance(key, str) or not isinstance(n, int):
        raise NoTensor("its storage is of a kind that is not known")
    if kind.name != _UNTYPED and kind.name not in _STORAGES:
        raise NoTensor(f"its storage is a {kind.path[:100]}, which is not read")
    return key, _STORAGES.get(kind.name), n


def _storage_in(raw: bytes) -> Storage:
    """The storage that stands in bytes of torch.save's older format.

    Five pickles (a magic number, a version, the system, the object, the keys of its storages), then of each storage
    the number of its elements, 8 bytes, and the elements. Pickling a tensor without torch.save writes this.
    """
    stream = BytesIO(raw)
    _, _, _, root, _ = (interpret_from(stream, "a storage inside of a pickle") for _ in range(5))
    key, dtype, n = _identity(root)
    stream.seek(8, 1)
    size = n * (BITS[dtype] // 8 if dtype else 1)
    held = np.frombuffer(stream.read(), np.uint8)
    if not 0 <= size <= len(held):
        raise NoTensor("its storage ends too early")
    return Storage(key, dtype, held[:size])
