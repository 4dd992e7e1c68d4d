"""Where in a torch.distributed.checkpoint folder a piece of a tensor is: file, archive, bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fp8debug.analysis.checkpoint.store.archive import Archive, beginning_of_first
from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.analysis.checkpoint.store.files import ByteFiles, stamp_of
from fp8debug.analysis.checkpoint.store.metadata import METADATA, Chunk, DistributedMetadata, Slot
from fp8debug.analysis.checkpoint.store.placing import located
from fp8debug.analysis.checkpoint.store.rebuilt import NoTensor
from fp8debug.analysis.checkpoint.store.strided import FileBytes, Strided
from fp8debug.analysis.checkpoint.store.subclasses import CODES, class_of, parts_of
from fp8debug.errors import Fp8DebugError

MOST_PLACES = 20_000


@dataclass(slots=True)
class Saved:
    """The folder, and where in it something is."""

    folder: Path
    metadata: DistributedMetadata
    files: ByteFiles
    safetensors: set[str] = field(default_factory=set)
    """Files that are not made of archives but are one safetensors file each, a choice that torch offers."""
    places: dict[Slot, Strided] = field(default_factory=dict)
    """Pieces that were located, at most MOST_PLACES: checkpoints may have millions."""

    def slot(self, name: str, chunk: Chunk | None) -> Slot | None:
        """Where a piece is, or an object."""
        slots = self.metadata.slots
        return slots.get((name, chunk.offsets if chunk else None)) or slots.get((name, None))

    def archive(self, slot: Slot, what: str) -> Archive:
        """What was written there."""
        return Archive(FileBytes(self.files, self.folder / slot.file, slot.first), slot.size, what)

    def beginning(self, slot: Slot) -> bytes:
        """First bytes of the pickle in what was written there."""
        return beginning_of_first(FileBytes(self.files, self.folder / slot.file, slot.first), slot.size)

    def missing_files(self) -> list[str]:
        """Those that are named and not there; the others are remembered as they are."""
        missing = []
        for name in sorted({slot.file for slot in self.metadata.slots.values()}):
            try:
                with (self.folder / name).open("rb") as opened:
                    self.files.stamps[self.folder / name] = stamp_of(opened.fileno())
                    if opened.read(9)[8:] == b"{":
                        self.safetensors.add(name)
            except OSError:
                missing.append(name)
        return missing

    def is_cut(self, slot: Slot) -> bool:
        """Whether a file ends before something that should be in it."""
        return slot.first + slot.size > self.files.stamps[self.folder / slot.file][0]


@dataclass(frozen=True, slots=True)
class ChunkPlace:
    """A piece, located in its archive when it is first read."""

    saved: Saved
    name: str
    dtype: str
    chunk: Chunk
    slot: Slot

    def strided(self) -> Strided:
        """As in `Located`."""
        places = self.saved.places
        found = places.get(self.slot)
        if found is None:
            found = self._locate()
            if len(places) >= MOST_PLACES:
                places.clear()
            places[self.slot] = found
        return found

    def _locate(self) -> Strided:
        what = f"{self.slot.file}: {short(self.name)}"
        archive = self.saved.archive(self.slot, what)
        try:
            parts = parts_of(archive.root)
        except NoTensor as error:
            raise Fp8DebugError(f"{what} cannot be read: {error}") from error
        view = (parts or {}).get(CODES)
        if view is None or view.dtype != self.dtype or view.shape != self.chunk.shape:
            got = f"{view.dtype} {list(view.shape)}" if view else class_of(archive.root)[:100]
            raise Fp8DebugError(
                f"{what} is {got}, and {METADATA} says {self.dtype} {list(self.chunk.shape)}; they are not of one "
                f"checkpoint, write it again"
            )
        return located(view, archive, self.name)
