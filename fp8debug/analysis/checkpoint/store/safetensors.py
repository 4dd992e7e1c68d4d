"""Safetensors files: eight bytes that give the length of a JSON header, the header, the bytes of the tensors.

The format is read here, not by its library: a header is data about gigabytes that need not be touched, new dtypes have
to be shown before a library knows them, and a strange file deserves a sentence.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import Store
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import Uint8Array

LONGEST_HEADER = 100_000_000
"""Bytes; the limit of the format's own reader."""


@dataclass(frozen=True, slots=True)
class Header:
    """What one file declares."""

    tensors: Mapping[str, Stored]
    starts: Mapping[str, int]
    """Where the bytes of each begin, from the start of the file."""
    metadata: Mapping[str, str]


class SafetensorsStore(Store):
    """One file, or the files of a sharded checkpoint."""

    def __init__(self, path: Path, files: Sequence[Path], configs: Mapping[str, Mapping[str, Any]]) -> None:
        self.path, self.configs = path, configs
        folder = path if path.is_dir() else path.parent
        self.tensors, self.metadata = {}, {}
        self._places: dict[str, tuple[Path, int]] = {}
        self._open: dict[Path, int] = {}
        for file in files:
            header = read_header(file, str(file.relative_to(folder)))
            self.tensors |= header.tensors
            self.metadata |= header.metadata
            self._places |= {name: (file, start) for name, start in header.starts.items()}
        self._size = sum(file.stat().st_size for file in files)

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """As in `Store`."""
        file, start = self._places[name]
        if file not in self._open:
            self._open[file] = os.open(file, os.O_RDONLY)
        buffer = np.empty(last - first, np.uint8)
        got = os.preadv(self._open[file], [memoryview(buffer)], start + first)
        if got != last - first:
            raise Fp8DebugError(f"{file} ends within tensor {name}")
        return buffer

    @property
    def n_bytes(self) -> int:
        """As in `Store`."""
        return self._size

    def close(self) -> None:
        """As in `Store`."""
        while self._open:
            os.close(self._open.popitem()[1])


def read_header(file: Path, shown: str) -> Header:
    """Read what a file declares.

    Raises:
        Fp8DebugError: it is no safetensors file, or a damaged one.
    """
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        declared = json.loads(stream.read(length))
    metadata = declared.pop("__metadata__", {})
    tensors = {name: Stored(name, one["dtype"], tuple(one["shape"]), shown) for name, one in declared.items()}
    starts = {name: 8 + length + one["data_offsets"][0] for name, one in declared.items()}
    return Header(tensors, starts, metadata)
