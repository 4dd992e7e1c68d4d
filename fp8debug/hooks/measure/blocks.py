"""What block scaling loses of one tensor: error sums, scales, and the blocks that fare worst.

The definitions are those of `fp8debug.blocks.quantize_blocks`; x is what the GEMM reads, q = float32(code) * decode. A
block with a NaN or Inf enters no sum and no scale statistic, and neither do its finite elements.

Where the recipe transforms an operand first (NVFP4's Hadamard transform), x is the transformed tensor in FP32 and q
comes from its BF16 rounding, so that this rounding, which is a part of the recipe, is counted as a loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fp8debug.blocks import HADAMARD_SIZE, rotate
from fp8debug.formats import Float32Array, Format
from fp8debug.hooks.measure.strips import STRIP, Strip
from fp8debug.recipes import BlockRecipe, Tile
from fp8debug.recipes.tensor import round_bf16


@dataclass(frozen=True, slots=True)
class BlockSums:
    """What an engine finds in one strip; sums as in `BlockSummary`, over blocks with a scale: not all zero, finite."""

    amax: Float32Array
    """Largest magnitude of each block, (blocks down, blocks across); infinite or NaN where an element is."""
    scale: Float32Array
    """The factor before the cast, of the same shape; meaningless in blocks without a scale."""
    n_nonzero: int
    n_underflow: int
    n_overflow: int
    x2: float
    q2: float
    xq: float
    err2: float
    n_saturated: int
    """Blocks with an overflow."""
    worst: int | None
    """Row-major index of the block with the lowest x^2 / (x - q)^2; None when no block has an error."""
    worst_ratio: float
    """That ratio."""


class BlockEngine(Protocol):
    """The part of `Engine` that is needed here."""

    def block_sums(
        self,
        strip: Strip,
        recipe: BlockRecipe,
        tensor: str,
        fmt: Format,
        tensor_amax: float,
        rng: np.random.Generator | None,
    ) -> BlockSums:
        """Return what one strip loses under a block recipe, equal to sums over `fp8debug.blocks.quantize_blocks`.

        `tensor_amax` is the largest magnitude of the whole tensor; `rng` is asked where the recipe rounds `tensor`
        stochastically.
        """


@dataclass(slots=True)
class BlockSummary:
    """The measured cells of a row of `blocks`, in the schema's order; meanings as there."""

    n: int = 0
    n_nonzero: int = 0
    n_underflow: int = 0
    n_overflow: int = 0
    sum_x2: float = 0.0
    sum_q2: float = 0.0
    sum_xq: float = 0.0
    sum_err2: float = 0.0
    n_blocks: int = 0
    n_zero_blocks: int = 0
    n_nonfinite_blocks: int = 0
    n_saturated_blocks: int = 0
    scale_min: float | None = None
    scale_median: float | None = None
    scale_max: float | None = None
    worst_block: int | None = None
    worst_block_sqnr_db: float | None = None

    def cells(self) -> tuple[Any, ...]:
        """In order of definition."""
        return tuple(getattr(self, name) for name in _SUMMARY_NAMES)


_SUMMARY_NAMES = tuple(field.name for field in fields(BlockSummary))


class BlockMeter:
    """Collects one recipe and format over the strips of one tensor in one orientation.

    Args:
        tensor_amax: largest magnitude of the whole tensor, for recipes with two levels of scales; after a rotation the
            largest of the sample is taken instead.
        rng: source of stochastic rounding; only asked by recipes that round so.
    """

    def __init__(
        self,
        engine: BlockEngine,
        recipe: BlockRecipe,
        tensor: str,
        orientation: str,
        fmt: Format,
        tensor_amax: float,
        rng: np.random.Generator | None = None,
    ) -> None:
        self._engine = engine
        self._recipe = recipe
        self._tensor = tensor
        self._fmt = fmt
        self._tensor_amax = tensor_amax
        self._rng = rng
        self._rotated: list[Strip] | None = [] if recipe.rotates(tensor, orientation) else None
        self._scales: list[Float32Array] = []
        self._worst_ratio = math.inf
        self._found = BlockSummary()

    def add(self, strip: Strip) -> None:
        """Take one strip; nothing of it is kept, except of rotated ones, whose amax is not known before the last."""
        if self._rotated is None:
            self._measure(strip)
        else:
            self._rotated.append(_rotated(strip))

    def summary(self) -> BlockSummary:
        """What was found, after the last strip."""
        if self._rotated is not None:
            self._tensor_amax = max((_finite_amax(strip.read) for strip in self._rotated), default=0.0)
            for strip in self._rotated:
                self._measure(strip)
            self._rotated = []
        scales = np.concatenate(self._scales) if self._scales else np.empty(0, np.float32)
        if not scales.size:
            return self._found
        # In float64, since the sum of two scales near 2^127 leaves float32.
        middle = float(np.float32(np.median(scales.astype(np.float64))))
        low, high = float(scales.min()), float(scales.max())
        return replace(self._found, scale_min=low, scale_median=middle, scale_max=high)

    def _measure(self, strip: Strip) -> None:
        recipe, tensor = self._recipe, self._tensor
        sums = self._engine.block_sums(strip, recipe, tensor, self._fmt, self._tensor_amax, self._rng)
        tile = recipe.tile(tensor)
        finite = np.isfinite(sums.amax)
        has_scale = finite & (sums.amax > 0)
        n_finite, n_scaled = int(np.count_nonzero(finite)), int(np.count_nonzero(has_scale))
        is_all = n_finite == finite.size
        found = self._found
        found.n += len(strip.x) * strip.length if is_all else int(_block_sizes(strip, tile)[finite].sum())
        found.n_nonzero += sums.n_nonzero
        found.n_underflow += sums.n_underflow
        found.n_overflow += sums.n_overflow
        found.sum_x2 += sums.x2
        found.sum_q2 += sums.q2
        found.sum_xq += sums.xq
        found.sum_err2 += sums.err2
        found.n_blocks += finite.size
        found.n_zero_blocks += n_finite - n_scaled
        found.n_nonfinite_blocks += finite.size - n_finite
        found.n_saturated_blocks += sums.n_saturated
        self._scales.append(sums.scale[has_scale])
        if sums.worst is not None and sums.worst_ratio < self._worst_ratio:
            self._worst_ratio = sums.worst_ratio
            found.worst_block = strip.first // tile.lines * finite.shape[1] + sums.worst
            found.worst_block_sqnr_db = 10 * math.log10(sums.worst_ratio) if sums.worst_ratio > 0 else None


def _block_sizes(strip: Strip, tile: Tile) -> npt.NDArray[np.int64]:
    """Elements of each block, (blocks down, blocks across)."""
    return np.outer(_sizes(len(strip.x), tile.lines), _sizes(strip.length, tile.length or strip.length))


def _sizes(total: int, size: int) -> npt.NDArray[np.int64]:
    return np.minimum(size, total - np.arange(0, total, size))


def _rotated(strip: Strip) -> Strip:
    x = rotate(strip.x[:, : strip.length], rounded=False)
    whole = strip.length - strip.length % HADAMARD_SIZE
    read = np.concatenate([round_bf16(x[:, :whole]), x[:, whole:]], axis=1)
    return replace(strip, x=_padded(x), read=_padded(read))


def _padded(lines: Float32Array) -> Float32Array:
    return np.pad(lines, ((0, 0), (0, -lines.shape[1] % STRIP)))


def _finite_amax(x: Float32Array) -> float:
    magnitude = np.abs(x)
    return float(magnitude.max(initial=0, where=np.isfinite(magnitude)))
