"""Tensors on their way to a file, and safetensors files of them: written in one pass, nothing held."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from fp8debug.analysis.checkpoint.store.base import BITS
from fp8debug.formats import Uint8Array


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written."""

    name: str
    dtype: str
    """As safetensors spells it."""
    shape: tuple[int, ...]
    parts: Callable[[], Iterable[Uint8Array]]
    """Its bytes, in order; asked for when those of the entries before it have been taken."""

    @property
    def n_bytes(self) -> int:
        """As stored."""
        return prod(self.shape) * BITS[self.dtype] // 8


def write_file(path: Path, entries: Sequence[Entry], metadata: Mapping[str, str]) -> None:
    """One safetensors file."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for entry in entries:
        header[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.n_bytes],
        }
        at += entry.n_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry in entries:
            for part in entry.parts():
                file.write(part.tobytes())
