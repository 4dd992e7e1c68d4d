"""The tensors of a checkpoint, read on demand: the one interface that files of every kind have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.errors import Fp8DebugError, escape, some
from fp8debug.formats import Uint8Array

CHUNK_BYTES = 4 << 20
"""What is held of a tensor at a time."""
LARGEST_WHOLE = 1 << 30
"""Bytes of the largest tensor that is read at once: four times the scales of the largest stacks of experts."""
_LONGEST_SHOWN = 200

BITS = {
    "F64": 64, "I64": 64, "U64": 64, "C64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16,
    "U16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F8_E8M0": 8, "U8": 8, "I8": 8,
    "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
"""Bits of an element, by safetensors' name of the dtype."""


class Store(ABC):
    """A checkpoint: headers are read when it is opened, bytes when they are asked for.

    Attributes:
        path: what was opened.
        tensors: in the order of the files, by name.
        configs: JSON files beside the tensors that say how they are quantised, by file name, parsed.
        metadata: free texts of the headers.
        problems: sentences about what is wrong or missing although the rest can be read.
        lost: tensors that an index lists and no file has: the file that it places each in.
    """

    path: Path
    tensors: Mapping[str, Stored]
    configs: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, str]
    problems: tuple[str, ...] = ()
    lost: Mapping[str, str] = MappingProxyType({})

    @abstractmethod
    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """Bytes `first` to `last` (exclusive) of a tensor in row-major order; threads may read at the same time.

        Raises:
            Fp8DebugError: the file cannot be read, has changed, or ends too early.
        """

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(map(n_bytes_of, self.tensors.values()))

    def whole(self, name: str) -> Uint8Array:
        """All bytes of a tensor that should be small: scales.

        Raises:
            Fp8DebugError: it is larger than what is held of any tensor.
        """
        size = n_bytes_of(self.tensors[name])
        if size > LARGEST_WHOLE:
            raise Fp8DebugError(
                f"{self.path}: tensor {short(name)} has {size:,} bytes, and tensors that are read at once, as scales "
                f"are, have at most {LARGEST_WHOLE:,}; if it holds no scales, say with --as how this checkpoint is read"
            )
        return self.read(name, 0, size)

    def chunks(self, name: str, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Uint8Array]:
        """All bytes of a tensor, in order, at most so many at a time."""
        size = n_bytes_of(self.tensors[name])
        for first in range(0, size, chunk_bytes):
            yield self.read(name, first, min(size, first + chunk_bytes))

    def bands(
        self, name: str, *, lines: int | None = None, multiple: int = 1, chunk_bytes: int = CHUNK_BYTES
    ) -> Iterator[tuple[int, Uint8Array]]:
        """The lines of a tensor, in order, as many at a time as fit, a `multiple` but for the last ones; of an empty
        tensor none.

        Args:
            name: of the tensor.
            lines: lines to see it as; None: all its axes but the last.
            multiple: lines of a band are a multiple of it.
            chunk_bytes: most bytes of a band, unless `multiple` lines need more.

        Yields:
            Number of the first line, and bytes of shape (lines, bytes of a line).

        Raises:
            Fp8DebugError: as `read`; or lines do not begin at whole bytes, as odd numbers of 4-bit codes do not.
        """
        stored = self.tensors[name]
        lines = stored.lines if lines is None else lines
        line_bytes = n_bytes_of(stored) // max(lines, 1)
        if line_bytes * lines != n_bytes_of(stored):
            raise Fp8DebugError(
                f"{self.path}: tensor {short(name)} has {n_bytes_of(stored):,} bytes in {lines:,} lines, so its lines "
                f"do not begin at whole bytes; expected an even number of {stored.dtype} codes a line"
            )
        step = max(1, chunk_bytes // max(1, line_bytes) // multiple) * multiple
        for first in range(0, lines if line_bytes else 0, step):
            last = min(lines, first + step)
            yield first, self.read(name, first * line_bytes, last * line_bytes).reshape(last - first, line_bytes)

    @abstractmethod
    def close(self) -> None:
        """Close the files; asking for bytes again opens them again."""

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def n_bytes_of(stored: Stored) -> int:
    """Bytes of a tensor as stored; shapes count values, also those that are smaller than a byte."""
    return -(-stored.n * BITS[stored.dtype] // 8)


def short(name: str) -> str:
    """A name from a file, fit for a sentence: a strange one may move the cursor, or be as long as the file."""
    return escape(name if len(name) <= _LONGEST_SHOWN else f"{name[:_LONGEST_SHOWN]}…")


def listed(names: Sequence[str]) -> str:
    """`2 tensors: a, b`, and some of the names where they are many."""
    return f"{len(names):,} tensor{'s' if len(names) != 1 else ''}: {some([short(name) for name in names])}"
