"""Archives of torch.save: a zip file with one pickle, `data.pkl`, and one entry for the bytes of each storage."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass
from functools import cached_property

from fp8debug.analysis.checkpoint.store.base import short
from fp8debug.analysis.checkpoint.store.pickled import interpret
from fp8debug.analysis.checkpoint.store.strided import Bytes
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Uint8Array

LONGEST_PICKLE = 512 << 20
"""Bytes of the longest pickle that is read."""
_LOCAL_HEADER = struct.Struct("<4s22xHH")
_ENCRYPTED = 0x1
_LOOKED_AT = 512


@dataclass(frozen=True, slots=True)
class Entry:
    """Where the bytes of an entry lie, counted from the beginning of the archive."""

    first: int
    size: int


class Archive:
    """An archive that lies in a file or in a part of it.

    Args:
        raw: its bytes.
        size: how many there are.
        what: for errors, the file and which part of it.

    Raises:
        Fp8DebugError: it is no zip archive, or has no pickle.
    """

    def __init__(self, raw: Bytes, size: int, what: str) -> None:
        self.raw, self.what = raw, what
        self._size = size
        self._places: dict[str, Entry] = {}
        try:
            with zipfile.ZipFile(io.BufferedReader(_Slice(raw, size))) as opened:
                self._entries = {info.filename: info for info in opened.infolist()}
        except _ZIP_ERRORS as error:
            raise Fp8DebugError(
                f"{what} is a damaged zip archive ({error}); expected a whole one, as torch.save writes it; fetch or "
                f"write the file again"
            ) from error
        pickles = [name for name in self._entries if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            found = "none" if not pickles else f"{len(pickles)} of them"
            raise Fp8DebugError(
                f"{what} is a zip archive, but not one of torch.save: expected one data.pkl, got {found}"
                f"{_torchscript(self._entries)}"
            )
        self._prefix = pickles[0].removesuffix("data.pkl")
        self._check_byte_order()

    @cached_property
    def root(self) -> object:
        """What data.pkl describes, see `pickled`."""
        entry = self._place("data.pkl")
        if entry.size > LONGEST_PICKLE:
            raise Fp8DebugError(
                f"{self.what}: data.pkl has {entry.size:,} bytes, and at most {LONGEST_PICKLE:,} are read; tensors "
                f"belong outside of it, save them as tensors"
            )
        return interpret(self._bytes(entry), f"{self.what}: data.pkl")

    def storage_size(self, key: str) -> int:
        """Bytes of a storage.

        Raises:
            Fp8DebugError: it is not there, or not as it is.
        """
        return self._info(f"data/{key}").file_size

    def storage_start(self, key: str) -> int:
        """Where the bytes of a storage begin in the archive.

        Raises:
            Fp8DebugError: it is not there, or not where it should be.
        """
        return self._place(f"data/{key}").first

    def read_storage(self, key: str, first: int, last: int) -> Uint8Array:
        """Bytes `first` to `last` (exclusive) of a storage.

        Raises:
            Fp8DebugError: it is not there, or too small.
        """
        entry = self._place(f"data/{key}")
        if last > entry.size:
            raise Fp8DebugError(f"{self.what}: data/{short(key)} has {entry.size:,} bytes, expected {last:,} at least")
        return self.raw.read(entry.first + first, entry.first + last)

    def _info(self, name: str) -> zipfile.ZipInfo:
        info = self._entries.get(self._prefix + name)
        if info is None:
            raise Fp8DebugError(
                f"{self.what} lacks {short(name)}, which data.pkl refers to; fetch or write the file again"
            )
        if (
            info.compress_type != zipfile.ZIP_STORED
            or info.flag_bits & _ENCRYPTED
            or info.compress_size != info.file_size
        ):
            raise Fp8DebugError(
                f"{self.what}: {name} is compressed or encrypted, and torch.save stores bytes as they are; load it and "
                f"save it again with torch.save"
            )
        return info

    def _place(self, name: str) -> Entry:
        if name in self._places:
            return self._places[name]
        info = self._info(name)
        entry = self._behind_header(info)
        if entry is None:
            raise Fp8DebugError(
                f"{self.what} is a damaged zip archive: {short(name)} is not where it should be; fetch or write the "
                f"file again"
            )
        self._places[name] = entry
        return entry

    def _behind_header(self, info: zipfile.ZipInfo) -> Entry | None:
        start = info.header_offset + _LOCAL_HEADER.size
        if info.header_offset < 0 or start > self._size:
            return None
        sign, name_length, extra_length = _LOCAL_HEADER.unpack(self.raw.read(info.header_offset, start).tobytes())
        first = start + name_length + extra_length
        if sign != b"PK\x03\x04" or first + info.file_size > self._size:
            return None
        return Entry(first, info.file_size)

    def _bytes(self, entry: Entry) -> bytes:
        return self.raw.read(entry.first, entry.first + entry.size).tobytes()

    def _check_byte_order(self) -> None:
        if self._prefix + "byteorder" not in self._entries:
            return
        order = self._bytes(self._place("byteorder"))[:16]
        if order != b"little":
            raise Fp8DebugError(
                f"{self.what} says byteorder {order.decode('ascii', 'replace')}, and little is read alone; load it on "
                f"a little-endian machine and save it there"
            )


def beginning_of_first(raw: Bytes, size: int) -> bytes:
    """The first bytes of an archive's first entry, which torch.save makes data.pkl; empty where there is none."""
    head = raw.read(0, min(size, _LOOKED_AT)).tobytes()
    if len(head) < _LOCAL_HEADER.size:
        return b""
    sign, name_length, extra_length = _LOCAL_HEADER.unpack_from(head)
    return head[_LOCAL_HEADER.size + name_length + extra_length :] if sign == b"PK\x03\x04" else b""


class _Slice(io.RawIOBase):
    """Bytes as a file that can be read and sought in."""

    def __init__(self, raw: Bytes, size: int) -> None:
        self._raw, self._size, self._at = raw, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("before the beginning")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        last = min(self._size, self._at + len(buffer))
        got: Uint8Array = self._raw.read(self._at, max(last, self._at))
        buffer[: len(got)] = got.data
        self._at += len(got)
        return len(got)


_ZIP_ERRORS = (
    zipfile.BadZipFile, ValueError, OSError, NotImplementedError, EOFError, struct.error, KeyError, IndexError,
    OverflowError, MemoryError, RuntimeError,
)  # fmt: skip
"""What zipfile lets through of damaged archives."""


def _torchscript(entries: dict[str, zipfile.ZipInfo]) -> str:
    is_script = any(name.endswith("/constants.pkl") for name in entries)
    return "; it looks like TorchScript: save its state_dict() with torch.save" if is_script else ""
