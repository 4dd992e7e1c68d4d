"""A cast weight as the tensors that a dialect stores: codes and scales, under its names and in its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from fp8debug.analysis.checkpoint.numbers import FORMAT_OF_DTYPE
from fp8debug.analysis.checkpoint.quantize.casting import WeightCast
from fp8debug.analysis.checkpoint.quantize.forms import Form, ScaleForm
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor
from fp8debug.formats import E4M3, Float32Array, Uint8Array, encode, encode_e8m0
from fp8debug.recipes import Tile

Told = Callable[[str], None]
"""Called with words for what is being done."""

_STORED_AS = {fmt: dtype for dtype, fmt in FORMAT_OF_DTYPE.items()} | {"E2M1": "U8"}
_BLOCK_BYTES = 16
"""Of 32 codes of 4 bits."""


@dataclass(frozen=True, slots=True)
class Spelled:
    """A weight, what it is stored as."""

    cast: WeightCast
    form: Form

    def tensors(self, told: Told = lambda words: None) -> tuple[WrittenTensor, ...]:
        """Codes and scales."""
        levels = [self.form.scale, self.form.tensor_scale]
        return (self._codes(told), *(self._scale(level) for level in levels if level is not None))

    def named(self, tail: str) -> str:
        """A name of this weight."""
        layer, dot, param = self.cast.stored.name.rpartition(".")
        return f"{layer}{dot}{tail.replace('{param}', param)}"

    def _codes(self, told: Told) -> WrittenTensor:
        *stack, length = self.cast.stored.shape
        shape = (*stack, length // 2 if self._is_packed else length)
        if self.form.has_blocks_apart:
            shape = (*stack, shape[-1] // _BLOCK_BYTES, _BLOCK_BYTES)
        # Objects that hold codes have them as bytes, and say what they are.
        dtype = "U8" if self.form.is_torch else _STORED_AS[self.cast.fmt.name]
        return WrittenTensor(self.named(self.form.codes), dtype, shape, partial(self._code_bytes, told))

    @property
    def _is_packed(self) -> bool:
        return self.cast.fmt.bits == 4

    def _code_bytes(self, told: Told) -> Iterator[Uint8Array]:
        told(f"quantizing {self.cast.stored.name}")
        for codes in self.cast.codes():
            yield packed(codes, is_high_first=self.form.is_high_first) if self._is_packed else codes

    def _scale(self, form: ScaleForm) -> WrittenTensor:
        shape = scale_shape(form.shape, self.cast.stored.shape, self.cast.tile)
        return WrittenTensor(self.named(form.tail), form.dtype, shape, lambda: [self._scale_bytes(form, shape)])

    def _scale_bytes(self, form: ScaleForm, shape: tuple[int, ...]) -> Uint8Array:
        cast, weight = self.cast, self.cast.stored.shape
        if form is self.form.tensor_scale:
            with np.errstate(all="ignore"):
                numbers = np.float32(1) / cast.tensor_scales() if form.divides else cast.tensor_scales()
            return scale_codes(numbers, form.dtype)
        numbers = cast.grid(divides=form.divides)
        if cast.tile is not None and form.shape in _OF_EACH_LINE and cast.tile.lines < _LINES_OF_A_GRID:
            numbers = one_a_line(numbers, cast.tile.lines, weight)
        numbers = np.ascontiguousarray(numbers)
        if form.shape == "padded_grid":
            numbers = padded(numbers.reshape(-1, numbers.shape[-1]), shape)
        codes = scale_codes(numbers, form.dtype)
        return swizzled(codes.reshape(*weight[:-1], -1)) if form.shape == "swizzled_grid" else codes


def scale_shape(shape: str, weight: tuple[int, ...], tile: Tile | None) -> tuple[int, ...]:
    """Shape of a scale tensor, in a word of forms.toml, of a weight (..., N, K)."""
    stack, rows, columns = weight[:-2], weight[-2], weight[-1]
    if shape.endswith("grid"):
        assert tile is not None and tile.length is not None
        lines = -(-rows // tile.lines) if tile.lines >= _LINES_OF_A_GRID else rows
        length = -(-columns // tile.length)
        if shape == "spaced_grid":
            return (*stack, lines, 1, length, 1)
        if shape == "padded_grid" and tile.lines >= _LINES_OF_A_GRID:
            return (*stack, lines, _up(length, 4))
        if shape in ("swizzled_grid", "padded_grid"):
            return (*stack, _up(lines, 128), _up(length, 4))
        return (*stack, lines, length)
    if shape == "scalar":
        return stack
    return (*stack, *{"one": () if stack else (1,), "square": (1, 1), "line": (rows,), "lines": (rows, 1)}[shape])


_LINES_OF_A_GRID = 128
"""Where blocks are so high readers know it; of lower ones each line is stored as if it had scales of its own."""
_OF_EACH_LINE = ("grid", "swizzled_grid", "padded_grid")


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def one_a_line(grid: Float32Array, tile_lines: int, weight: tuple[int, ...]) -> Float32Array:
    """A grid of blocks of several lines, with a row for each line of a weight (..., N, K)."""
    rows = weight[-2]
    blocks = grid.reshape(prod(weight[:-2]), -(-rows // tile_lines), grid.shape[-1])
    return np.repeat(blocks, tile_lines, axis=1)[:, :rows]


def scale_codes(numbers: Float32Array, dtype: str) -> Uint8Array:
    """Scales as bytes of a dtype that holds them exactly: F32, E8M0 (also as U8), E4M3."""
    if dtype in ("U8", "F8_E8M0"):
        return encode_e8m0(numbers)
    return encode(numbers, E4M3) if dtype == "F8_E4M3" else numbers.astype("<f4").reshape(-1).view(np.uint8)


def padded(grid: Float32Array, shape: tuple[int, ...]) -> Float32Array:
    """A grid filled up with zeros, as which E8M0 has its smallest number."""
    margins = [(0, wanted - there) for wanted, there in zip(shape, grid.shape, strict=True)]
    return np.pad(grid, margins, constant_values=np.float32(0))


def swizzled(grid: Uint8Array) -> Uint8Array:
    """A grid (..., lines, length) in the order of tensor cores, filled up with zeros to tiles of 128 x 4.

    Of a tile the one of line r and column c is number 16 (r mod 32) + 4 (r div 32) + c (cuBLAS, "1D block scaling
    factors layout").
    """
    *stack, lines, length = grid.shape
    down, across = -(-lines // 128), -(-length // 4)
    padding = [(0, 0)] * len(stack) + [(0, down * 128 - lines), (0, across * 4 - length)]
    tiles = np.pad(grid, padding).reshape(-1, down, 4, 32, across, 4)
    return np.ascontiguousarray(tiles.transpose(0, 1, 4, 3, 2, 5))


def packed(codes: Uint8Array, *, is_high_first: bool = False) -> Uint8Array:
    """Codes of 4 bits, two in a byte, the first in its low half or its high one: (lines, n) to (lines, n / 2)."""
    low, high = (codes[:, 1::2], codes[:, 0::2]) if is_high_first else (codes[:, 0::2], codes[:, 1::2])
    pairs: Uint8Array = low | np.left_shift(high, np.uint8(4))
    return pairs
