"""Whether the shape of a scale goes with the shape of the codes, and what each of its numbers is for then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from fp8debug.analysis.checkpoint.dialects.dialect import Pair

Shape = tuple[int, ...]

KNOWN_BLOCKS: tuple[Pair, ...] = (
    (128, 128), (64, 64), (32, 32), (16, 16), (256, 256), (1, 128), (1, 64), (1, 32), (1, 16), (1, 256),
)  # fmt: skip
"""Block sizes that are in use. A size that is none of them is never read out of shapes."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What the numbers of a scale are for."""

    layout: str
    """One of records.LAYOUTS."""
    block: Pair | None = None
    is_transposed: bool = False
    is_swizzled: bool = False
    is_square: bool = False
    """Whether a column would have fitted as well as a line."""


def fit_simple(shape: Shape, scale: Shape) -> Fit | None:
    """One number for the tensor, for each matrix of a stack, for each line or for each column.

    Args:
        shape: of the values, (..., N, K).
        scale: of the scale: [], [1], [1, 1], [E], [E, 1, 1], [N], [N, 1], [..., N, 1], [K], [1, K]; of a stack also
            [E, K], [E, 1, K] and [E, K, 1], a block of N lines and one column.
    """
    if prod(scale) == 1:
        return Fit("tensor")
    if len(shape) > 2 and scale in _with_ones(shape[:-2], 2):
        return Fit("tensor")
    if len(shape) > 1 and scale in _with_ones(shape[:-1], 1):
        return Fit("line", is_square=scale == shape[-1:])
    if len(shape) > 3 and scale in _with_ones(shape[:1], len(shape) - 1):
        return Fit("tensor")  # of convolutions: one number an output channel
    if len(shape) in (1, 2) and scale in (shape[-1:], (1, shape[-1])):
        return Fit("column")
    if len(shape) == 2 and scale == (1, shape[0]):
        return Fit("line", is_transposed=True)
    if len(shape) == 3 and scale in ((shape[0], shape[2]), (shape[0], 1, shape[2]), (shape[0], shape[2], 1)):
        return Fit("block", (shape[1], 1))
    return None


def _with_ones(axes: Shape, n_more: int) -> Iterable[Shape]:
    """The axes alone, and followed by up to so many ones."""
    return [axes + (1,) * n for n in range(n_more + 1)]


def grid_shape(shape: Shape, block: Pair) -> Shape:
    """Shape of a grid with one number a block; the last blocks may be smaller."""
    if len(shape) < 2:
        return tuple(-(-n // block[1]) for n in shape)
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def fit_blocks(shape: Shape, scale: Shape, block: Pair) -> Fit | None:
    """One number for each block of that size, the grid stored as it lies or columns first.

    Args:
        shape: of the values, (..., N, K).
        scale: of the scale: [..., N / b, K / b], or [..., N / b, 1, K / b, 1] as ModelOpt has it; both rounded up.
        block: lines and columns.
    """
    expected = grid_shape(shape, block)
    if scale == expected or (len(shape) > 1 and scale == (*expected[:-1], 1, expected[-1], 1)):
        return Fit("block", block)
    if len(expected) > 1 and scale == (*expected[:-2], expected[-1], expected[-2]):
        return Fit("block", block, is_transposed=True)
    return None


def fit_swizzled(shape: Shape, scale: Shape, block: Pair) -> Fit | None:
    """The grid padded to whole tiles of 128 x 4 numbers: its number of elements decides, whatever its axes."""
    if len(shape) < 2 or prod(shape) == 0:
        return None
    *stack, lines, length = grid_shape(shape, block)
    n = prod(stack) * (-(-lines // 128) * 128) * (-(-length // 4) * 4)
    return Fit("block", block, is_swizzled=True) if prod(scale) == n else None


def fit_halves(shape: Shape, scale: Shape) -> Fit | None:
    """Two numbers a matrix, one for each half of its lines: of two layers that are stored as one."""
    halves = ((*shape[:-2], 2, 1), (*shape[:-2], 2)) if len(shape) > 2 else ((2, 1),)
    if len(shape) > 1 and shape[-2] % 2 == 0 and shape[-2] and scale in halves:
        return Fit("block", (shape[-2] // 2, shape[-1]))
    return None
