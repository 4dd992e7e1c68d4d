"""Tensors of an archive of torch.save, each with the place of its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.archive import Archive
from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.analysis.checkpoint.store.flattened import Flattened
from fp8debug.analysis.checkpoint.store.pieces import Here, Piece, Pieced
from fp8debug.analysis.checkpoint.store.rebuilt import View
from fp8debug.analysis.checkpoint.store.strided import Bytes, HeldBytes, PartOfBytes, Strided
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Uint8Array

Placing = Callable[[View, Archive, str], Strided]
"""`strided_of` or `located`."""


@dataclass(frozen=True, slots=True)
class StorageBytes:
    """A storage of an archive."""

    archive: Archive
    key: str

    def read(self, first: int, last: int) -> Uint8Array:
        """As in `Bytes`."""
        return self.archive.read_storage(self.key, first, last)


def placed(flat: Flattened, archive: Archive, file: str, place: Placing | None = None) -> Iterator[Pieced]:
    """Everything that a state dict holds, with its place; extra states that are bytes as tensors of U8.

    Raises:
        Fp8DebugError: bytes of a tensor are not in the archive.
    """
    for name, parts in flat.tensors.items():
        for part, view in parts.items():
            shown = f"{name}#{part}" if part else name
            strided = (place or strided_of)(view, archive, shown)
            piece = Piece((0,) * len(view.shape), view.shape, Here(strided))
            yield Pieced(Stored(shown, view.dtype, view.declared, file), view.itemsize, view.shape, (piece,))
    for name, raw in flat.extra_states.items():
        yield raw_bytes(name, file, HeldBytes(np.frombuffer(raw, np.uint8)), len(raw))


def raw_bytes(name: str, file: str, raw: Bytes, size: int) -> Pieced:
    """Bytes as a tensor of U8."""
    piece = Piece((0,), (size,), Here(Strided(raw, 1, (size,), (1,), 0)))
    return Pieced(Stored(name, "U8", (size,), file), 1, (size,), (piece,))


def located(view: View, archive: Archive, name: str) -> Strided:
    """The same as `strided_of`, with no need of the archive any more: checkpoints may have 100,000 of these.

    Raises:
        Fp8DebugError: its storage is missing, too small, or not where it should be.
    """
    found = strided_of(view, archive, name)
    if view.storage.held is not None:
        return found
    return replace(found, bytes=PartOfBytes(archive.raw, archive.storage_start(view.storage.key)))


def strided_of(view: View, archive: Archive, name: str) -> Strided:
    """Where the elements of a tensor lie.

    Raises:
        Fp8DebugError: its storage is missing or too small.
    """
    held = view.storage.held
    size = len(held) if held is not None else archive.storage_size(view.storage.key)
    if view.needs > size:
        raise Fp8DebugError(
            f"{archive.what}: tensor {short(name)} needs {view.needs:,} bytes of its storage, which has {size:,}; the "
            f"file is damaged, fetch or write it again"
        )
    source = HeldBytes(held) if held is not None else StorageBytes(archive, view.storage.key)
    return Strided(source, view.itemsize, view.shape, view.strides, view.offset)
