"""Codes and scales made values again, a band of lines at a time: the one place where a convention is applied."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.store import CHUNK_BYTES, Store
from fp8debug.formats import FORMATS, BoolArray, Float32Array, Uint8Array, decode

Float64Array = npt.NDArray[np.float64]
_Number = TypeVar("_Number", bound=np.generic)
_CODES_AT_A_TIME = 1 << 16

_FORMAT_OF_DTYPE = {
    "F8_E4M3": "E4M3",
    "F8_E5M2": "E5M2",
    "F8_E4M3FNUZ": "E4M3FNUZ",
    "F8_E5M2FNUZ": "E5M2FNUZ",
    "F8_E8M0": "E8M0",
}
_NUMPY = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|u1",
}


def numbers(raw: Uint8Array, encoding: str) -> Float32Array:
    """Bytes as the numbers they are, float32; float64 values are rounded.

    Args:
        raw: bytes, any shape; the last axis is taken together where a number has several bytes.
        encoding: a dtype of `Stored`, or the name of a format of 8 bits.

    Returns:
        float32, of the same shape but for the last axis.

    Raises:
        KeyError: an encoding that holds no numbers, or packed ones.
    """
    encoding = _FORMAT_OF_DTYPE.get(encoding, encoding)
    if encoding in FORMATS:
        codes = np.arange(256) & ((1 << FORMATS[encoding].bits) - 1)
        table = decode(codes.astype(np.uint8), FORMATS[encoding])
        values = np.empty(raw.shape, np.float32)
        for part, some in zip(_slices(values.reshape(-1)), _slices(raw.reshape(-1)), strict=True):
            np.take(table, some, mode="clip", out=part)  # twice as fast as looking for codes out of range
        return values
    if encoding == "BF16":
        bits = raw.view("<u2").astype(np.uint32)
        bits <<= 16
        return bits.view(np.float32)
    with np.errstate(over="ignore"):
        return raw.view(_NUMPY[encoding]).astype(np.float32)


def _slices(flat: npt.NDArray[_Number]) -> Iterator[npt.NDArray[_Number]]:
    """Parts that fit the cache together with the eight bytes of an index that numpy makes of each code."""
    for first in range(0, flat.size, _CODES_AT_A_TIME):
        yield flat[first : first + _CODES_AT_A_TIME]


def can_be_numbers(encoding: str) -> bool:
    """Whether `numbers` reads it."""
    return encoding == "BF16" or encoding in _NUMPY or _FORMAT_OF_DTYPE.get(encoding, encoding) in FORMATS


def scale_numbers(store: Store, scale: Scale) -> Float32Array:
    """All numbers of a scale as they are stored, in its stored shape; before any division."""
    return numbers(store.whole(scale.name), scale.encoding).reshape(scale.shape)


def grid_of(quantised: Quantised, scale: Scale, stored: Float32Array) -> Float32Array:
    """What codes are multiplied with, one number a block of the tensor seen as (lines, length).

    Args:
        quantised: the tensor.
        scale: one of its scales.
        stored: its numbers, see `scale_numbers`.

    Returns:
        float32 of shape (1, 1), (lines, 1), (1, columns), or (block lines of all stacked matrices, block columns);
        inverted where the scale divides, by an IEEE division.
    """
    with np.errstate(all="ignore"):
        factors = np.float32(1) / stored if scale.divides else stored
    if scale.layout == "tensor":
        # One number for the tensor, or one for each matrix of a stack.
        if factors.size == 1:
            return factors.reshape(1, 1)
        return np.repeat(factors.reshape(-1), quantised.lines // factors.size).reshape(-1, 1)
    if scale.layout == "line":
        return factors.reshape(-1, 1)
    if scale.layout == "column":
        return factors.reshape(1, -1)
    assert scale.block is not None
    down, across = blocks_in(quantised, scale.block)
    matrices = prod(quantised.shape[:-2])
    if scale.is_swizzled:
        factors = unswizzled(factors, down, across)
    elif scale.is_transposed:
        factors = np.swapaxes(factors.reshape(matrices, across, down), -1, -2)
    return np.ascontiguousarray(factors).reshape(matrices * down, across)


def blocks_in(quantised: Quantised, block: tuple[int, int]) -> tuple[int, int]:
    """Lines and columns of the grid of each matrix; the last blocks may be smaller."""
    rows = quantised.shape[-2] if len(quantised.shape) > 1 else 1
    return -(-rows // block[0]), -(-quantised.length // block[1])


def unswizzled(stored: npt.NDArray[_Number], lines: int, length: int) -> npt.NDArray[_Number]:
    """A grid in the order of tensor cores as (matrices, lines, length), without its padding.

    Of a tile of 128 x 4 numbers, the one of line r and column c is number 16 (r mod 32) + 4 (r div 32) + c; tiles
    follow one another line of tiles by line of tiles (cuBLAS, "1D block scaling factors layout").
    """
    down, across = -(-lines // 128), -(-length // 4)
    tiles = stored.reshape(-1, down, across, 32, 4, 4)
    grid = tiles.transpose(0, 1, 4, 3, 2, 5).reshape(-1, 128 * down, 4 * across)
    return grid[:, :lines, :length]


def line_blocks(quantised: Quantised, scale: Scale) -> npt.NDArray[np.intp] | None:
    """For each line of the tensor the row of the grid that it belongs to; None: the one row there is."""
    if scale.layout == "block":
        assert scale.block is not None
        rows = quantised.shape[-2] if len(quantised.shape) > 1 else 1
        in_matrix = np.arange(rows) // scale.block[0]
        stack = np.arange(quantised.lines // max(rows, 1))[:, None] * (-(-rows // scale.block[0]))
        blocks: npt.NDArray[np.intp] = (stack + in_matrix).reshape(-1)
        return blocks
    return None


def column_block(scale: Scale) -> int | None:
    """Columns that share a number; None: all of them, or (layout column) one each."""
    return scale.block[1] if scale.block is not None and scale.layout == "block" else None


def spread_over(
    grid: Float32Array, rows: npt.NDArray[np.intp] | None, first: int, last: int, width: int | None, length: int
) -> Float32Array:
    """Factors of the lines first..last, broadcastable to (last - first, length)."""
    if rows is not None:
        part = grid[rows[first:last]]
    elif grid.shape[0] > 1:
        part = grid[first:last]
    else:
        part = grid
    return part if width is None else np.repeat(part, width, axis=1)[:, :length]


class Dequantiser:
    """A quantised tensor, ready to give its values; scales are read when it is made.

    Args:
        store: where it lies.
        quantised: how it is read.
        grids: other factors than those stored, by name of the scale: what a hypothesis multiplies with.
    """

    def __init__(self, store: Store, quantised: Quantised, grids: dict[str, Float32Array] | None = None) -> None:
        self.quantised = quantised
        self._store = store
        self._factors: list[tuple[Float32Array, npt.NDArray[np.intp] | None, int | None]] = []
        for scale in quantised.scales:
            grid = (grids or {}).get(scale.name)
            if grid is None:
                grid = grid_of(quantised, scale, scale_numbers(store, scale))
            self._factors.append((grid, line_blocks(quantised, scale), column_block(scale)))

    def factors(self, first: int, last: int) -> Float32Array:
        """What the codes of some lines are multiplied with, broadcastable to (last - first, length)."""
        length = self.quantised.length
        total = np.ones((1, 1), np.float32)
        with np.errstate(all="ignore"):
            for grid, rows, width in self._factors:
                total = total * spread_over(grid, rows, first, last, width, length)
        return total

    def codes(self, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, Float32Array]]:
        """Values of the codes, no scale applied: first line, float32 (lines, length)."""
        for first, raw in self._store.bands(self.quantised.name, lines=self.quantised.lines, chunk_bytes=chunk_bytes):
            codes = unpacked(raw, self.quantised.is_high_first) if self.quantised.is_packed else raw
            yield first, decode(codes, FORMATS[self.quantised.fmt])

    def bands(self, chunk_bytes: int = CHUNK_BYTES // 4) -> Iterator[tuple[int, Float32Array]]:
        """Dequantised values: first line, float32 (lines, length)."""
        for first, values in self.codes(chunk_bytes):
            with np.errstate(all="ignore"):
                yield first, values * self.factors(first, first + len(values))

    def at(self, positions: npt.NDArray[np.int64]) -> tuple[Float32Array, Float32Array]:
        """Values of single codes, and what they are multiplied with.

        Args:
            positions: int64, ascending, in the flattened tensor.

        Returns:
            Two float32 arrays of the same shape: values of the codes, factors.
        """
        lines, columns = np.divmod(positions, self.quantised.length)
        codes = np.empty(positions.shape, np.uint8)
        for first, raw in self._bands(CHUNK_BYTES):
            here = slice(*np.searchsorted(lines, (first, first + len(raw))))
            if self.quantised.is_packed:
                pairs = raw[lines[here] - first, columns[here] // 2]
                codes[here] = np.where(columns[here] % 2 != self.quantised.is_high_first, pairs >> 4, pairs & 15)
            else:
                codes[here] = raw[lines[here] - first, columns[here]]
        return decode(codes, FORMATS[self.quantised.fmt]), self._factors_at(lines, columns)

    def _factors_at(self, lines: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Float32Array:
        total = np.ones(lines.shape, np.float32)
        for grid, rows, width in self._factors:
            down = lines if rows is None else rows[lines]
            across = columns if width is None else columns // width
            with np.errstate(all="ignore"):
                total = total * grid[np.minimum(down, len(grid) - 1), np.minimum(across, grid.shape[1] - 1)]
        return total

    def _bands(self, chunk_bytes: int) -> Iterator[tuple[int, Uint8Array]]:
        return self._store.bands(self.quantised.name, lines=self.quantised.lines, chunk_bytes=chunk_bytes)


def unpacked(raw: Uint8Array, is_high_first: bool = False) -> Uint8Array:
    """Codes of 4 bits: (lines, bytes) to (lines, 2 x bytes), the low half of a byte first, or the high half."""
    codes = np.empty((raw.shape[0], raw.shape[1], 2), np.uint8)
    np.bitwise_and(raw, 15, out=codes[:, :, int(is_high_first)])
    np.right_shift(raw, 4, out=codes[:, :, 1 - int(is_high_first)])
    return codes.reshape(raw.shape[0], -1)


@cache
def finite_codes(fmt: str) -> BoolArray:
    """Which of the codes of a format are finite, bool (2^bits,)."""
    known = FORMATS[fmt]
    return np.isfinite(decode(np.arange(1 << known.bits, dtype=np.uint8), known))
