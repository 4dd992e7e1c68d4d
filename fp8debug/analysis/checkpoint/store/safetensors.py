"""Checkpoints in safetensors files: one file, or several that hold the tensors of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import Store, n_bytes_of
from fp8debug.analysis.checkpoint.store.files import ByteFiles
from fp8debug.analysis.checkpoint.store.header import read_header
from fp8debug.analysis.checkpoint.store.joined import which_counts
from fp8debug.formats import Uint8Array


class SafetensorsStore(Store):
    """Files whose headers have been read.

    Args:
        path: what was opened: the file, or the folder of all.
        files: their paths, and how they are named in records.
        configs: parsed JSON files beside them.
        problems: what is known of them already.
        file_of: which file counts, where several have a tensor of a name: what an index says.

    Raises:
        Fp8DebugError: a file is damaged, or two hold a tensor of the same name and nothing says which counts.
    """

    def __init__(
        self,
        path: Path,
        files: Sequence[tuple[Path, str]],
        configs: Mapping[str, Mapping[str, Any]],
        problems: Sequence[str] = (),
        file_of: Mapping[str, str] | None = None,
    ) -> None:
        self.path, self.configs = path, configs
        tensors: dict[str, Stored] = {}
        metadata: dict[str, str] = {}
        self._places: dict[str, tuple[Path, int]] = {}
        self._files = ByteFiles()
        found = list(problems)
        for file, shown in files:
            header = read_header(file, shown)
            self._files.stamps[file] = header.stamp
            metadata |= header.metadata
            found += header.problems
            for name, stored in header.tensors.items():
                if name in tensors and not which_counts(path, tensors[name], stored, (file_of or {}).get(name)):
                    continue
                tensors[name] = stored
                self._places[name] = file, header.starts[name]
        self.tensors, self.metadata, self.problems = tensors, metadata, tuple(found)

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """As in `Store`."""
        file, start = self._places[name]
        if not 0 <= first <= last <= n_bytes_of(self.tensors[name]):
            raise IndexError(f"bytes {first} to {last} of tensor {name}")
        return self._files.read(file, start + first, start + last)

    def close(self) -> None:
        """As in `Store`."""
        self._files.close()
