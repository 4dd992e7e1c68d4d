"""Lines of a tensor and of its reference, side by side, with their codes and factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fp8debug.analysis.checkpoint.grids import column_block, grid_of, line_blocks, scale_numbers
from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Rows
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import applied, dot, square_sum
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.formats import FORMATS, Float32Array, Format, Uint8Array

MOST_ELEMENTS = 1 << 20
"""Tensors up to this size are looked at whole; of larger ones, as many elements."""


@dataclass(eq=False)
class Sample:
    """Lines of a pair. Elements that are not finite in the reference are zero in all of it."""

    pair: Pair
    lines: Rows
    """(n,): which lines of the tensor they are, ascending."""
    x: Float32Array
    """(n, length): of the reference."""
    raw: Uint8Array
    """(n, length): our codes, packing undone; (n, 0) of a tensor in high precision."""
    codes: Float32Array
    """(n, length): values of the codes, no scale applied; zero where they are not finite."""
    n_nonfinite: int
    """Codes that are not finite where the reference is."""

    @property
    def quantised(self) -> Quantised | None:
        """How our tensor is read; None: it is in high precision."""
        return self.pair.tensor if isinstance(self.pair.tensor, Quantised) else None

    @property
    def fmt(self) -> Format | None:
        """Its element format."""
        return FORMATS[self.quantised.fmt] if self.quantised else None

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.pair.length

    @property
    def n(self) -> int:
        """Elements that are looked at."""
        return int(self.x.size)

    @property
    def is_whole(self) -> bool:
        """Whether these are all lines."""
        return len(self.lines) == self.pair.lines

    @cached_property
    def grids(self) -> Mapping[str, Float32Array]:
        """What codes are multiplied with, by name of the scale, in the shape of its grid."""
        if self.quantised is None:
            return {}
        read = self.pair.store
        return {s.name: grid_of(self.quantised, s, scale_numbers(read, s)) for s in self.quantised.scales}

    @cached_property
    def factors(self) -> Float32Array:
        """What the codes are multiplied with as stored, broadcastable to (n, length)."""
        return self.factors_under({})

    def factors_under(self, grids: Mapping[str, Float32Array]) -> Float32Array:
        """The same with other grids in the place of some."""
        total = np.ones((1, 1), np.float32)
        with np.errstate(all="ignore"):
            for scale in self.quantised.scales if self.quantised else ():
                total = total * self.spread_grid(scale, grids.get(scale.name, self.grids[scale.name]))
        return total

    def spread_grid(self, scale: Scale, grid: Float32Array) -> Float32Array:
        """The numbers of a scale's grid at the sampled lines."""
        assert self.quantised is not None
        rows, width = line_blocks(self.quantised, scale), column_block(scale)
        part = grid[rows[self.lines]] if rows is not None else grid[self.lines] if len(grid) > 1 else grid
        return part if width is None else np.repeat(part, width, axis=1)[:, : self.length]

    @cached_property
    def values(self) -> Float32Array:
        """Our values as they are read; zero where they are not finite."""
        return applied(self.codes, self.factors)

    @cached_property
    def sum_x2(self) -> float:
        """Sum of the squared reference."""
        return square_sum(self.x)

    @cached_property
    def error(self) -> float:
        """Squared error as it is read."""
        return self.error_of(self.values)

    @cached_property
    def fitted_error(self) -> float:
        """Squared error that is left when our values are multiplied with `best_factor`."""
        return max(0.0, self.sum_x2 - self.best_factor * dot(self.x, self.values))

    def error_of(self, values: Float32Array) -> float:
        """Squared error that other values leave."""
        return square_sum(self.x - values)

    @cached_property
    def best_factor(self) -> float:
        """The one factor that leaves the least error when our values are multiplied with it; 0: none helps."""
        q2 = square_sum(self.values)
        return dot(self.x, self.values) / q2 if q2 else 0.0
