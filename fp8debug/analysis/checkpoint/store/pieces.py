"""Tensors that lie in several pieces, put together again: what stores of torch's files have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store.base import Store
from fp8debug.analysis.checkpoint.store.files import ByteFiles
from fp8debug.analysis.checkpoint.store.strided import Strided, boxes, contiguous_strides, read_elements
from fp8debug.formats import Uint8Array


class Located(Protocol):
    """A piece of a tensor whose place in a file is looked up when it is read."""

    def strided(self) -> Strided:
        """Where its elements lie.

        Raises:
            Fp8DebugError: not where the file says, or not what it says.
        """


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a tensor."""

    offsets: tuple[int, ...]
    """Where it begins on each axis."""
    shape: tuple[int, ...]
    place: Located


@dataclass(frozen=True, slots=True)
class Here:
    """A place that is known already."""

    at: Strided

    def strided(self) -> Strided:
        """As in `Located`."""
        return self.at


@dataclass(frozen=True, slots=True)
class Pieced:
    """A tensor of a file, and what it consists of."""

    stored: Stored
    itemsize: int
    shape: tuple[int, ...]
    """Of the elements of `itemsize` bytes; of two 4-bit codes in a byte, bytes."""
    pieces: tuple[Piece, ...]


class PiecedStore(Store):
    """A checkpoint whose tensors consist of pieces."""

    def __init__(
        self,
        path: Path,
        tensors: Sequence[Pieced],
        configs: Mapping[str, Mapping[str, Any]],
        problems: Sequence[str],
        files: ByteFiles,
    ) -> None:
        self.path, self.configs, self.metadata = path, configs, {}
        self.problems = tuple(problems)
        self.tensors = {one.stored.name: one.stored for one in tensors}
        self._pieced = {one.stored.name: one for one in tensors}
        self._files = files

    def read(self, name: str, first: int, last: int) -> Uint8Array:
        """As in `Store`."""
        one = self._pieced[name]
        low, high = first // one.itemsize, -(-last // one.itemsize)
        raw = read_pieces(one, low, high)
        return raw[first - low * one.itemsize : last - low * one.itemsize]

    def close(self) -> None:
        """As in `Store`."""
        self._files.close()


def read_pieces(tensor: Pieced, first: int, last: int) -> Uint8Array:
    """Bytes of the elements `first` to `last` (exclusive) of a tensor in row-major order.

    Raises:
        Fp8DebugError: a file cannot be read.
    """
    if len(tensor.pieces) == 1 and tensor.pieces[0].shape == tensor.shape:
        return read_elements(tensor.pieces[0].place.strided(), first, last)
    out = np.empty(((last - first), tensor.itemsize), np.uint8)
    at = 0
    for box in boxes(tensor.shape, first, last):
        shape = box.shape
        n = prod(shape)
        target = out[at : at + n].reshape(*shape, tensor.itemsize)
        for piece in tensor.pieces:
            _copy_common(piece, box.first, box.last, target)
        at += n
    return out.reshape(-1)


def _copy_common(piece: Piece, first: tuple[int, ...], last: tuple[int, ...], target: Uint8Array) -> None:
    """Copy what a piece has of a block. The block is a run of elements in row-major order, and so is its part here."""
    starts, stops = [], []
    for low, high, offset, size in zip(first, last, piece.offsets, piece.shape, strict=True):
        start, stop = max(low, offset), min(high, offset + size)
        if start >= stop:
            return
        starts.append(start)
        stops.append(stop)
    shape = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
    strides = contiguous_strides(piece.shape)
    begin = sum((start - offset) * stride for start, offset, stride in zip(starts, piece.offsets, strides, strict=True))
    raw = read_elements(piece.place.strided(), begin, begin + prod(shape))
    index = tuple(slice(start - low, stop - low) for start, stop, low in zip(starts, stops, first, strict=True))
    target[index] = raw.reshape(*shape, target.shape[-1])
