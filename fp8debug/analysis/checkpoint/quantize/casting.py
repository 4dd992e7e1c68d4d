"""One weight in small formats: codes a band of lines at a time, and the scales that go with them.

The arithmetic is that of the core's recipes. A stack of matrices is cast matrix by matrix: none shares a block or a
scale with the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from fp8debug.analysis.checkpoint.numbers import numbers
from fp8debug.analysis.checkpoint.records import Stored
from fp8debug.analysis.checkpoint.store import CHUNK_BYTES, Store
from fp8debug.analysis.checkpoint.store.base import n_bytes_of
from fp8debug.blocks import block_amax, quantize_blocks
from fp8debug.formats import Float32Array, Format, Uint8Array, decode, encode
from fp8debug.recipes import NVFP4, BlockRecipe, TensorRecipe, Tile, scale_inv

CastRecipe = BlockRecipe | TensorRecipe

_NVFP4_RANGE = np.float32(448 * 6)


@dataclass
class Sums:
    """Over the finite values of a tensor, in float64: what its SQNR follows from."""

    xx: float = 0.0
    ee: float = 0.0
    n_nonfinite: int = 0
    """Values that are not finite, before the cast or after it."""

    def add(self, x: Float32Array, q: Float32Array) -> None:
        """Values, and what they became."""
        finite = np.isfinite(x) & np.isfinite(q)
        self.n_nonfinite += int(finite.size - np.count_nonzero(finite))
        x64 = np.where(finite, x, 0).astype(np.float64)
        error = x64 - np.where(finite, q, 0)
        self.xx += float(np.einsum("ij,ij->", x64, x64))
        self.ee += float(np.einsum("ij,ij->", error, error))

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(sum x^2 / sum (x - q)^2); None: all values are zero, or none has changed."""
        return 10 * math.log10(self.xx / self.ee) if self.xx and self.ee else None


@dataclass
class WeightCast:
    """A weight on its way to codes and scales. Each is a pass of its own over the source, so that they may be written
    in any order and nothing is held."""

    store: Store
    stored: Stored
    recipe: CastRecipe
    fmt: Format
    amaxes: tuple[float, ...] | None
    """Largest magnitude of each matrix, where the recipe asks for it: `matrix_amaxes`."""
    sums: Sums = field(init=False, default_factory=Sums)
    """Whole when all of `codes` has been taken."""

    @property
    def tile(self) -> Tile | None:
        """Block of the recipe; None: one scale a tensor."""
        return self.recipe.tile("w") if isinstance(self.recipe, BlockRecipe) else None

    @property
    def makes_nan_of_zeros(self) -> bool:
        """Whether a matrix of zeros would be cast by a recipe that divides 0 by 0 then: see `NVFP4.factors`."""
        return isinstance(self.recipe, NVFP4) and self.recipe.flavour != "te" and 0.0 in (self.amaxes or ())

    def codes(self) -> Iterator[Uint8Array]:
        """Codes of the tensor, in order: (lines, length) of some lines at a time."""
        self.sums = Sums()
        for amax, band in self._bands():
            codes, q = self._cast(band, amax)
            self.sums.add(band, q)
            yield codes

    def grid(self, *, divides: bool = False) -> Float32Array:
        """What codes are multiplied with, or divided by, before any second level.

        Returns:
            float32 (block lines of all matrices, block columns); (lines, 1) of a recipe with one scale a line,
            (matrices, 1) of one with one scale a tensor.
        """
        if isinstance(self.recipe, TensorRecipe):
            scales = [self.recipe.scale(amax, self.fmt) for amax in self.amaxes or ()]
            return np.array([[scale if divides else scale_inv(scale)] for scale in scales], np.float32)
        return np.concatenate([self._scales(band, amax, divides) for amax, band in self._bands()])

    def tensor_scales(self) -> Float32Array:
        """The second level of NVFP4: float32 (matrices,); 1 for zeros, as Transformer Engine has it."""
        amaxes = np.array(self.amaxes, np.float32)
        return np.where(amaxes == 0, np.float32(1), amaxes / _NVFP4_RANGE)

    def _bands(self) -> Iterator[tuple[float | None, Float32Array]]:
        multiple = self.tile.lines if self.tile else 1
        for matrix in range(matrices_of(self.stored)):
            amax = None if self.amaxes is None else self.amaxes[matrix]
            for band in bands_of(self.store, self.stored, matrix, multiple=multiple):
                yield amax, band

    def _cast(self, band: Float32Array, amax: float | None) -> tuple[Uint8Array, Float32Array]:
        """Codes, and the values that they stand for."""
        if isinstance(self.recipe, BlockRecipe):
            done = quantize_blocks(band, self.recipe, "w", self.fmt, amax)
            return done.codes, done.values
        assert amax is not None
        scale = self.recipe.scale(amax, self.fmt)
        with np.errstate(all="ignore"):  # infinities and NaN are data
            codes = encode(band * scale, self.fmt)
            return codes, decode(codes, self.fmt) * scale_inv(scale)

    def _scales(self, band: Float32Array, amax: float | None, divides: bool) -> Float32Array:
        assert isinstance(self.recipe, BlockRecipe)
        amaxes = block_amax(band, self.recipe.tile("w"), nan_spreads=self.recipe.nan_spreads)
        if isinstance(self.recipe, NVFP4):
            assert amax is not None and not divides
            return self.recipe.block_scales(amaxes, amax)
        factors = self.recipe.factors(amaxes, 0.0, self.fmt)  # blocks alone decide
        with np.errstate(all="ignore"):
            return (
                (np.float32(1) / factors.decode if factors.divides else factors.encode) if divides else factors.decode
            )


def matrices_of(stored: Stored) -> int:
    """Matrices that are stacked in a tensor."""
    return math.prod(stored.shape[:-2])


def bands_of(store: Store, stored: Stored, matrix: int, *, multiple: int) -> Iterator[Float32Array]:
    """Values of one matrix, float32 (lines, length), some lines at a time: a multiple but for the last ones."""
    lines = stored.shape[-2]
    line_bytes = n_bytes_of(stored) // stored.lines
    step = max(1, CHUNK_BYTES // line_bytes // multiple) * multiple
    for first in range(matrix * lines, (matrix + 1) * lines, step):
        last = min((matrix + 1) * lines, first + step)
        raw = store.read(stored.name, first * line_bytes, last * line_bytes)
        yield np.ascontiguousarray(numbers(raw.reshape(last - first, line_bytes), stored.dtype))


def matrix_amaxes(store: Store, stored: Stored, recipe: CastRecipe) -> tuple[float, ...] | None:
    """Largest magnitude of each matrix, where scales follow from it: infinities count, NaN does where it spreads.

    Returns:
        None where blocks alone decide, so that one pass over the tensor is enough.
    """
    if not isinstance(recipe, (TensorRecipe, NVFP4)):
        return None
    spreads = recipe.nan_spreads if isinstance(recipe, NVFP4) else getattr(recipe, "flavour", "te") == "torchao"
    larger = np.maximum if spreads else np.fmax
    amaxes = []
    for matrix in range(matrices_of(stored)):
        amax = np.float32(0)
        for band in bands_of(store, stored, matrix, multiple=1):
            amax = larger(amax, larger.reduce(np.abs(band), axis=None, initial=0))
        amaxes.append(float(amax))
    return tuple(amaxes)
