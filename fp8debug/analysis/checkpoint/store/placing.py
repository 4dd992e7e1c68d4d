"""Tensors of an archive of torch.save, each with the place of its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.archive import Archive
from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.analysis.checkpoint.store.extra_state import LONGEST, is_extra_state, state_views
from fp8debug.analysis.checkpoint.store.flattened import Flattened
from fp8debug.analysis.checkpoint.store.pieces import Here, Piece, Pieced
from fp8debug.analysis.checkpoint.store.rebuilt import View
from fp8debug.analysis.checkpoint.store.strided import HeldBytes, Strided, read_elements
from fp8debug.analysis.checkpoint.store.subclasses import CODES
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Uint8Array


@dataclass(slots=True)
class Contents:
    """What is to be shown of a file."""

    tensors: list[Pieced] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StorageBytes:
    """A storage of an archive."""

    archive: Archive
    key: str

    def read(self, first: int, last: int) -> Uint8Array:
        """As in `Bytes`."""
        return self.archive.read_storage(self.key, first, last)


@dataclass(frozen=True, slots=True)
class InExtraState:
    """A tensor in an extra state, which is read again each time: thousands of histories are not held."""

    raw: Callable[[], bytes]
    key: str
    what: str

    def strided(self) -> Strided:
        """As in `Located`."""
        return state_views(self.raw(), self.what)[self.key][1]


def contents_of(flat: Flattened, archive: Archive, file: str) -> Contents:
    """Places of everything that a state dict holds.

    Raises:
        Fp8DebugError: bytes of a tensor are not in the archive.
    """
    contents = Contents()
    for name, parts in flat.tensors.items():
        if is_extra_state(name) and parts.keys() == {CODES} and parts[CODES].dtype == "U8":
            place = strided_of(parts[CODES], archive, name)
            show_state(contents, name, file, lambda place=place: _small(place), place.n)  # type: ignore[misc]
            continue
        for part, view in parts.items():
            shown = f"{name}#{part}" if part else name
            contents.tensors.append(whole(shown, file, view, strided_of(view, archive, shown)))
    for name, raw in flat.extra_states.items():
        show_state(contents, name, file, lambda raw=raw: raw, len(raw))  # type: ignore[misc]
    return contents


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


def whole(name: str, file: str, view: View, strided: Strided) -> Pieced:
    """A tensor that lies in one piece."""
    stored = Stored(name, view.dtype, view.declared, file)
    return Pieced(stored, view.itemsize, view.shape, (Piece((0,) * len(view.shape), view.shape, Here(strided)),))


def show_state(contents: Contents, name: str, file: str, raw: Callable[[], bytes], size: int) -> None:
    """Show the tensors in an extra state of Transformer Engine; a damaged one becomes a problem."""
    if size > LONGEST:
        contents.problems.append(f"not read: {short(name)} has {size:,} bytes, and at most {LONGEST:,} are read of one")
        return
    try:
        contents.tensors += _state_tensors(name, file, raw)
    except Fp8DebugError as error:
        contents.problems.append(f"not read: {error}")


def _state_tensors(name: str, file: str, raw: Callable[[], bytes]) -> Iterator[Pieced]:
    for key, (view, _) in state_views(raw(), short(name)).items():
        stored = Stored(f"{name}#{key}", view.dtype, view.shape, file)
        piece = Piece((0,) * len(view.shape), view.shape, InExtraState(raw, key, short(name)))
        yield Pieced(stored, view.itemsize, view.shape, (piece,))


def _small(place: Strided) -> bytes:
    return read_elements(place, 0, place.n).tobytes()
