"""Folders of torch.distributed.checkpoint: `.metadata`, and `.distcp` files with one archive of torch.save a piece."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import BITS, Store, listed, short
from fp8debug.analysis.checkpoint.store.coverage import fault_of
from fp8debug.analysis.checkpoint.store.extra_state import is_extra_state
from fp8debug.analysis.checkpoint.store.files import ByteFiles
from fp8debug.analysis.checkpoint.store.flattened import flatten, is_training_state, training_left_out
from fp8debug.analysis.checkpoint.store.metadata import METADATA, Declared, Slot, read_metadata
from fp8debug.analysis.checkpoint.store.pieces import Piece, Pieced, PiecedStore
from fp8debug.analysis.checkpoint.store.placing import located, placed, raw_bytes
from fp8debug.analysis.checkpoint.store.rebuilt import NoTensor
from fp8debug.analysis.checkpoint.store.saved import ChunkPlace, Saved
from fp8debug.analysis.checkpoint.store.strided import FileBytes
from fp8debug.analysis.checkpoint.store.subclasses import CODES, class_of, parts_of
from fp8debug.analysis.checkpoint.store.unfolding import unfold_extra_states
from fp8debug.errors import Fp8DebugError, escape, some

_PLAIN = b"\x80\x02ctorch._utils\n_rebuild_tensor_v"
"""Beginning of the pickle of a plain tensor."""


def open_distributed(
    path: str | Path, configs: Mapping[str, Mapping[str, Any]] | None = None, problems: Sequence[str] = ()
) -> Store:
    """Open a folder of torch.distributed.checkpoint; its metadata is read, tensors when they are asked for.

    Args:
        path: the folder.
        configs: JSON files in it, see `Store`.
        problems: sentences about these.

    Raises:
        Fp8DebugError: it has no metadata, these are damaged, or no file that they name is there.
    """
    folder = Path(path)
    saved = Saved(folder, read_metadata(folder / METADATA), ByteFiles())
    with ExitStack() as on_errors:
        on_errors.callback(saved.files.close)
        tensors, told = _Reader(saved).read()
        store = unfold_extra_states(PiecedStore(folder, tensors, configs or {}, [*problems, *told], saved.files))
        on_errors.pop_all()
    return store


class _Reader:
    """Sorts what was saved into tensors to show, and sentences about the rest."""

    def __init__(self, saved: Saved) -> None:
        self._saved = saved
        self._missing = saved.missing_files()
        self._tensors: list[Pieced] = []
        self._problems: list[str] = []
        self._lost: list[str] = []
        self._cut: list[str] = []
        self._otherwise: list[str] = []
        self._objects: list[str] = []
        self._transforms: dict[str, list[str]] = {}
        self._n_training = 0

    def read(self) -> tuple[list[Pieced], list[str]]:
        """Everything there is."""
        metadata = self._saved.metadata
        files = {slot.file for slot in metadata.slots.values()}
        if files and len(self._missing) == len(files):
            raise Fp8DebugError(
                f"no file that {self._saved.folder / METADATA} names is there: {some(self._missing)}; fetch them"
            )
        for name, declared in metadata.tensors.items():
            if is_training_state(name):
                self._n_training += 1
            else:
                self._add(name, declared)
        for name in metadata.objects:
            self._add_object(name)
        self._problems += self._sentences(len(files))
        return self._tensors, self._problems

    def _add(self, name: str, declared: Declared) -> None:
        dtype = declared.dtype
        if dtype is None or BITS[dtype] < 8:
            self._problems.append(f"not read: {short(name)}: its dtype is not one that is read")
            return
        fault = fault_of(declared.shape, declared.chunks)
        if fault is not None:
            self._problems.append(f"not read: {short(name)}: {fault}")
            return
        places = [(chunk, self._saved.slot(name, chunk)) for chunk in declared.chunks]
        slots = [slot for _, slot in places if slot is not None]
        if len(slots) < len(places):
            self._problems.append(f"not read: {short(name)}: {METADATA} does not say where its pieces are")
        elif self._can_be_read(name, slots) and not self._is_subclass(name, slots):
            pieces = tuple(
                Piece(chunk.offsets, chunk.shape, ChunkPlace(self._saved, name, dtype, chunk, slot))
                for chunk, slot in zip(declared.chunks, slots, strict=True)
            )
            file = slots[0].file if slots else METADATA
            stored = Stored(name, dtype, declared.shape, file)
            self._tensors.append(Pieced(stored, BITS[dtype] // 8, declared.shape, pieces))

    def _can_be_read(self, name: str, slots: Sequence[Slot]) -> bool:
        for slot in slots:
            if slot.file in self._missing:
                self._lost.append(name)
            elif self._saved.is_cut(slot):
                self._cut.append(name)
            elif slot.file in self._saved.safetensors:
                self._otherwise.append(name)
            elif slot.transforms:
                self._transforms.setdefault(", ".join(slot.transforms), []).append(name)
            else:
                continue
            return False
        return True

    def _is_subclass(self, name: str, slots: Sequence[Slot]) -> bool:
        """Whether a tensor was written as a Python class that holds several; if so it is shown, or told about.

        The first call in its pickle gives plain tensors away; all others are looked at.
        """
        if not slots or self._saved.beginning(slots[0]).startswith(_PLAIN):
            return False
        try:
            archive = self._saved.archive(slots[0], f"{slots[0].file}: {short(name)}")
            parts = parts_of(archive.root)
        except NoTensor as error:
            self._problems.append(f"not read: {short(name)}: {error}")
            return True
        if parts is not None and parts.keys() == {CODES}:
            return False
        if parts is None or len(slots) > 1:
            kind = escape(class_of(archive.root)[:100])
            pieces = f"in {len(slots)} pieces, each a {kind}; save it without sharding" if parts else f"a {kind}"
            self._problems.append(f"not read: {short(name)}: it is {pieces}")
            return True
        flat = flatten({name: archive.root}, name)
        self._tensors += placed(flat, archive, slots[0].file, located)
        return True

    def _add_object(self, name: str) -> None:
        slot = self._saved.slot(name, None)
        if slot is None or not is_extra_state(name) or is_training_state(name):
            self._objects.append(name)
        elif self._can_be_read(name, [slot]):
            place = FileBytes(self._saved.files, self._saved.folder / slot.file, slot.first)
            self._tensors.append(raw_bytes(name, slot.file, place, slot.size))

    def _sentences(self, n_files: int) -> list[str]:
        told = []
        if self._missing:
            lost = f"; not read: {listed(self._lost)}" if self._lost else ""
            told.append(f"{len(self._missing):,} of {n_files:,} files missing: {some(self._missing)}{lost}")
        if self._cut:
            told.append(f"files end too early, fetch them again; not read: {listed(self._cut)}")
        if self._otherwise:
            told.append(
                f"files are in the format of safetensors, which is read where HuggingFaceStorageWriter wrote it; not "
                f"read: {listed(self._otherwise)}"
            )
        for transforms, names in self._transforms.items():
            told.append(f"not read, written through {transforms}: {listed(names)}")
        if self._n_training:
            told.append(training_left_out(self._n_training))
        if self._objects:
            told.append(f"left out, no tensors: {some([short(name) for name in self._objects])}")
        return told
