"""Headers of safetensors files: eight bytes that give the length of a JSON object, and that object.

The format is read here, not by its library: a header is data about gigabytes that need not be touched, new dtypes have
to be shown before a library knows them, and a strange file deserves a sentence. What the library refuses is refused
here too, but for what does not touch the bytes of any known tensor: that is a problem, and the rest is read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import BITS, listed, short
from fp8debug.analysis.checkpoint.store.documents import Repeating, is_text, json_kind, parse_strict
from fp8debug.analysis.checkpoint.store.entries import check_size, read_entry
from fp8debug.analysis.checkpoint.store.extents import Extent, check_extents
from fp8debug.analysis.checkpoint.store.files import Stamp, stamp_of
from fp8debug.analysis.checkpoint.store.kinds import other_kind
from fp8debug.errors import Fp8DebugError, some

LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the format's own reader."""
_METADATA = "__metadata__"


@dataclass(frozen=True, slots=True)
class Header:
    """What one file declares."""

    tensors: Mapping[str, Stored]
    starts: Mapping[str, int]
    """Where the bytes of each begin, from the start of the file."""
    metadata: Mapping[str, str]
    stamp: Stamp
    """Of the file when it was read."""
    problems: tuple[str, ...] = ()


def read_header(file: Path, shown: str) -> Header:
    """Read what a file declares.

    Args:
        file: where it lies.
        shown: its name in the records of its tensors, and in problems.

    Raises:
        Fp8DebugError: it is no safetensors file, or a damaged one; nothing of it can be trusted then.
    """
    try:
        if not S_ISREG(file.stat().st_mode):
            raise Fp8DebugError(f"{file} is no file with bytes to read; expected a safetensors file")
        with file.open("rb") as stream:
            stamp = stamp_of(stream.fileno())
            length = _header_length(file, stream.read(64), stamp[0])
            stream.seek(8)
            raw = stream.read(length)
    except OSError as error:
        raise Fp8DebugError(f"cannot read {file}: {error.strerror or error}") from error
    if len(raw) < length:
        raise Fp8DebugError(f"{file} has changed while it was read; wait until it is written, and start again")
    return _checked(file, shown, _declared(file, raw), 8 + length, stamp)


def _header_length(file: Path, beginning: bytes, size: int) -> int:
    """Bytes of the header, from the first bytes of a file of that size."""
    if kind := other_kind(beginning):
        raise Fp8DebugError(f"{file} is no safetensors file: it is {kind}")
    if size < 8:
        raise Fp8DebugError(f"{file} is no safetensors file: it has {size} bytes, and 8 give the length of its header")
    length: int = struct.unpack("<Q", beginning[:8])[0]
    if length > LONGEST_HEADER:
        raise Fp8DebugError(
            f"{file} is no safetensors file: its first 8 bytes say that its header has {length:,} bytes; expected at "
            f"most {LONGEST_HEADER:,}, the limit of the format"
        )
    if length > size - 8:
        raise Fp8DebugError(
            f"{file} is cut off, or no safetensors file: its header should have {length:,} bytes, and {size - 8:,} "
            f"are there; fetch or write it again"
        )
    return length


def _declared(file: Path, raw: bytes) -> dict[str, Any]:
    """The object in a header."""
    try:
        declared = parse_strict(raw)
    except ValueError as error:
        raise Fp8DebugError(
            f"{file} is no safetensors file, or a damaged one: its header is no JSON ({error}); fetch or write it again"
        ) from error
    if not isinstance(declared, dict):
        raise Fp8DebugError(f"{file} is damaged: its header is {json_kind(declared)}; expected an object of tensors")
    if isinstance(declared, Repeating):
        raise Fp8DebugError(
            f"{file} is damaged: its header declares {short(declared.repeated)} twice, and readers differ in which "
            f"they take; expected each name once; write it again"
        )
    return declared


def _checked(file: Path, shown: str, declared: dict[str, Any], begin: int, stamp: Stamp) -> Header:
    metadata, problems = _texts(shown, declared.pop(_METADATA, None))
    tensors: dict[str, Stored] = {}
    extents: list[Extent] = []
    unknown: dict[str, list[str]] = {}
    for name, entry in declared.items():
        dtype, shape, first, last = read_entry(file, name, entry)
        extents.append(Extent(first, last, name))
        if dtype in BITS:
            tensors[name] = Stored(name, dtype, shape, shown)
            check_size(file, tensors[name], last - first)
        else:
            unknown.setdefault(dtype, []).append(name)
    check_extents(file, extents, stamp[0] - begin)
    problems += [
        f"{shown}: dtype {short(dtype)} is not known; left out: {listed(names)}" for dtype, names in unknown.items()
    ]
    starts = {extent.name: begin + extent.first for extent in extents if extent.name in tensors}
    return Header(tensors, starts, metadata, stamp, tuple(problems))


def _texts(shown: str, metadata: Any) -> tuple[dict[str, str], list[str]]:
    """The free texts of a header, and a sentence where some are none."""
    if metadata is None:
        return {}, []
    if not isinstance(metadata, dict):
        return {}, [f"{shown}: {_METADATA} is {json_kind(metadata)}, not an object of texts; it is left out"]
    texts = {key: text for key, text in metadata.items() if is_text(key) and is_text(text)}
    if len(texts) == len(metadata):
        return texts, []
    odd = [short(key) for key in metadata if key not in texts]
    return texts, [f"{shown}: {_METADATA} holds what is no text, and it is left out: {some(odd)}"]
