"""Elements of a tensor that lie apart in the bytes of a file, read in row-major order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Protocol

import numpy as np

from fp8debug.analysis.checkpoint.store.files import ByteFiles
from fp8debug.formats import Uint8Array

SMALL_BYTES = 4 << 20
"""Bytes between the first and the last element of a tensor, up to which all are read at once when they lie apart."""
_FARTHEST, _READ_BYTES = 1 << 17, 1 << 22
"""Bytes between two elements that are skipped rather than read apart, as a read costs as much as 100 kB in a row; and
bytes of one read that skips."""


class Bytes(Protocol):
    """Bytes that can be read in parts."""

    def read(self, first: int, last: int) -> Uint8Array:
        """Bytes `first` to `last` (exclusive)."""


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Part of a file."""

    files: ByteFiles
    file: Path
    start: int

    def read(self, first: int, last: int) -> Uint8Array:
        """As in `Bytes`."""
        return self.files.read(self.file, self.start + first, self.start + last)


@dataclass(frozen=True, slots=True)
class PartOfBytes:
    """Bytes from some place on."""

    whole: Bytes
    start: int

    def read(self, first: int, last: int) -> Uint8Array:
        """As in `Bytes`."""
        return self.whole.read(self.start + first, self.start + last)


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes in memory."""

    held: Uint8Array

    def read(self, first: int, last: int) -> Uint8Array:
        """As in `Bytes`."""
        return self.held[first:last]


@dataclass(frozen=True, slots=True)
class Strided:
    """A tensor of some dtype within the bytes of its storage."""

    bytes: Bytes
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements, none negative."""
    offset: int
    """Element of the storage where it begins."""

    @property
    def n(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def end(self) -> int:
        """Elements that the storage must have at least."""
        return self.offset + span(self.shape, self.strides)


@dataclass(frozen=True, slots=True)
class Box:
    """A block of a tensor: from `first` to `last` (exclusive) on each axis."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements on each axis."""
        return tuple(last - first for first, last in zip(self.first, self.last, strict=True))


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one of a tensor, those between included; 0 of an empty one."""
    if not prod(shape):
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor in row-major order."""
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements lie in row-major order without gaps; strides of axes of one element do not count."""
    return not prod(shape) or all(
        size == 1 or stride == right
        for size, stride, right in zip(shape, strides, contiguous_strides(shape), strict=True)
    )


def boxes(shape: tuple[int, ...], first: int, last: int) -> Iterator[Box]:
    """Elements `first` to `last` (exclusive) of a tensor in row-major order, as blocks one after the other."""
    if first >= last:
        return
    if not shape:
        yield Box((), ())
        return
    inner = prod(shape[1:])
    low, low_rest = divmod(first, inner)
    high, high_rest = divmod(last, inner)
    if low == high:
        yield from _in_row(low, boxes(shape[1:], low_rest, high_rest))
        return
    if low_rest:
        yield from _in_row(low, boxes(shape[1:], low_rest, inner))
        low += 1
    if low < high:
        yield Box((low, *(0 for _ in shape[1:])), (high, *shape[1:]))
    if high_rest:
        yield from _in_row(high, boxes(shape[1:], 0, high_rest))


def read_elements(tensor: Strided, first: int, last: int) -> Uint8Array:
    """Bytes of the elements `first` to `last` (exclusive) of a tensor in row-major order.

    Raises:
        Fp8DebugError: the file cannot be read.
    """
    size = tensor.itemsize
    if is_contiguous(tensor.shape, tensor.strides):
        return tensor.bytes.read((tensor.offset + first) * size, (tensor.offset + last) * size)
    whole = span(tensor.shape, tensor.strides)
    if whole * size <= SMALL_BYTES:
        held = HeldBytes(tensor.bytes.read(tensor.offset * size, (tensor.offset + whole) * size))
        tensor = Strided(held, size, tensor.shape, tensor.strides, 0)
    parts = [_box_bytes(tensor, box) for box in boxes(tensor.shape, first, last)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def _in_row(row: int, inner: Iterator[Box]) -> Iterator[Box]:
    return (Box((row, *box.first), (row + 1, *box.last)) for box in inner)


def _box_bytes(tensor: Strided, box: Box) -> Uint8Array:
    """Bytes of a block, one after the other: one read for all elements that lie close together."""
    shape, strides, size = box.shape, tensor.strides, tensor.itemsize
    start = tensor.offset + sum(at * stride for at, stride in zip(box.first, strides, strict=True))
    steps = _steps(shape, strides, size)
    byte_strides = tuple(stride * size for stride in strides)
    out = np.empty(shape, f"u{size}")
    for first in product(*(range(0, n, step) for n, step in zip(shape, steps, strict=True))):
        part = tuple(min(step, n - at) for at, n, step in zip(first, shape, steps, strict=True))
        at = start + sum(place * stride for place, stride in zip(first, strides, strict=True))
        raw = tensor.bytes.read(at * size, (at + span(part, strides)) * size).view(out.dtype)
        index = tuple(slice(low, low + n) for low, n in zip(first, part, strict=True))
        out[index] = np.lib.stride_tricks.as_strided(raw, part, byte_strides, writeable=False)
    return out.reshape(-1).view(np.uint8)


def _steps(shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> tuple[int, ...]:
    """How many elements of each axis one read takes, by ascending strides: as long as it reads little in vain."""
    steps = [1] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda one: strides[one]):
        step_bytes = max(1, strides[axis] * size)
        if step_bytes > _FARTHEST:
            break
        steps[axis] = max(1, min(shape[axis], _READ_BYTES // step_bytes))
        if steps[axis] < shape[axis]:
            break
    return tuple(steps)
