"""A cast weight as the tensors that a dialect stores: codes and scales, under its names and in its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np

from fp8debug.analysis.checkpoint.quantize.casting import WeightCast
from fp8debug.analysis.checkpoint.quantize.forms import Form, ScaleForm
from fp8debug.analysis.checkpoint.store.writing import WrittenTensor
from fp8debug.formats import E4M3, Float32Array, Uint8Array, encode, encode_e8m0
from fp8debug.recipes import Tile

Told = Callable[[str], None]
"""Called with words for what is being done."""

_STORED_AS = {
    "E4M3": "F8_E4M3",
    "E5M2": "F8_E5M2",
    "E4M3FNUZ": "F8_E4M3FNUZ",
    "E5M2FNUZ": "F8_E5M2FNUZ",
    "E2M1": "U8",
}
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
        return WrittenTensor(
            self.named(self.form.codes), _STORED_AS[self.cast.fmt.name], shape, partial(self._code_bytes, told)
        )

    @property
    def _is_packed(self) -> bool:
        return self.cast.fmt.bits == 4

    def _code_bytes(self, told: Told) -> Iterator[Uint8Array]:
        told(f"quantizing {self.cast.stored.name}")
        for codes in self.cast.codes():
            yield packed(codes) if self._is_packed else codes

    def _scale(self, form: ScaleForm) -> WrittenTensor:
        shape = scale_shape(form.shape, self.cast.stored.shape, self.cast.tile)
        return WrittenTensor(self.named(form.tail), form.dtype, shape, lambda: [self._scale_bytes(form, shape)])

    def _scale_bytes(self, form: ScaleForm, shape: tuple[int, ...]) -> Uint8Array:
        numbers = self.cast.tensor_scales() if form is self.form.tensor_scale else self.cast.grid()
        if self.cast.tile is not None and form.shape == "grid" and numbers.size != prod(shape):
            numbers = one_a_line(numbers, self.cast.tile.lines, self.cast.stored.shape)
        with np.errstate(all="ignore"):
            numbers = np.float32(1) / numbers if form.divides else numbers
        return scale_codes(np.ascontiguousarray(numbers, np.float32), form.dtype)


def scale_shape(shape: str, weight: tuple[int, ...], tile: Tile | None) -> tuple[int, ...]:
    """Shape of a scale tensor, in a word of forms.toml, of a weight (..., N, K)."""
    stack, rows, columns = weight[:-2], weight[-2], weight[-1]
    if shape in ("grid", "spaced_grid"):
        assert tile is not None and tile.length is not None
        # Where blocks are 128 lines high readers know it; 16 or 32 lines are stored as if each had its own.
        grid = (-(-rows // tile.lines) if tile.lines >= _LINES_OF_A_GRID else rows, -(-columns // tile.length))
        return (*stack, *grid) if shape == "grid" else (*stack, grid[0], 1, grid[1], 1)
    if shape == "scalar":
        return stack
    return (*stack, *{"one": () if stack else (1,), "square": (1, 1), "line": (rows,), "lines": (rows, 1)}[shape])


_LINES_OF_A_GRID = 128


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


def packed(codes: Uint8Array) -> Uint8Array:
    """Codes of 4 bits, two in a byte, the first in the low half: (lines, n) to (lines, n / 2)."""
    pairs: Uint8Array = codes[:, 0::2] | np.left_shift(codes[:, 1::2], np.uint8(4))
    return pairs
