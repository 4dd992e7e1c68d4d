"""What hypotheses are tried on: lines of a tensor and of its reference, side by side, with their codes and factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells, Rows, ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import applied, dot, finite, square_sum
from fp8debug.analysis.checkpoint.reference.pair import Pair
from fp8debug.analysis.checkpoint.values import column_block, grid_of, line_blocks, scale_numbers
from fp8debug.formats import FORMATS, Float32Array, Format, Uint8Array, fake_quantize
from fp8debug.metrics import Float64Array
from fp8debug.recipes.mx import e8m0_scales

MOST_ELEMENTS = 1 << 20
"""Tensors up to this size are looked at whole; of larger ones, as many elements."""


@dataclass(eq=False)
class Evidence:
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
    def cells(self) -> Cells:
        """Cells that have one factor each, as it is read."""
        scale = self.quantised.grid_scale if self.quantised else None
        if scale is None or scale.layout == "tensor":
            return Cells(self.lines // self._lines_of_a_number(scale), self.length, self.length)
        if scale.layout == "line":
            return Cells(self.lines, self.length, self.length)
        if scale.layout == "column":
            return Cells(np.zeros(len(self.lines), np.intp), 1, self.length)
        assert self.quantised is not None
        rows, width = line_blocks(self.quantised, scale), column_block(scale)
        return Cells(np.zeros(len(self.lines), np.intp) if rows is None else rows[self.lines], width or 1, self.length)

    def cut(self, lines: int, columns: int) -> Cells:
        """Blocks of so many lines and columns, 0: all of a matrix; they never cross from one into the next."""
        shape = self.pair.tensor.shape
        matrix = shape[-2] if len(shape) > 1 else 1
        height = min(lines or matrix, matrix)
        rows = self.lines // matrix * -(-matrix // height) + self.lines % matrix // height
        return Cells(rows, min(columns or self.length, self.length), self.length)

    def _lines_of_a_number(self, scale: Scale | None) -> int:
        if scale is None or self.quantised is None or prod(scale.shape) <= 1 or len(self.quantised.shape) < 2:
            return max(1, self.pair.lines)
        return self.quantised.shape[-2]

    @cached_property
    def check_cells(self) -> Cells:
        """Cells that must each come out right under a right hypothesis: at least some, where there is one factor."""
        return self.cells if self.cells.n >= 8 else Cells(self.lines, self.length, self.length)

    @cached_property
    def sum_x2(self) -> float:
        """Sum of the squared reference."""
        return square_sum(self.x)

    @cached_property
    def error(self) -> float:
        """Squared error as it is read."""
        return self.error_of(self.values)

    def error_of(self, values: Float32Array) -> float:
        """Squared error that other values leave."""
        return square_sum(self.x - values)

    @cached_property
    def best_factor(self) -> float:
        """The one factor that leaves the least error when our values are multiplied with it; 0: none helps."""
        q2 = square_sum(self.values)
        return dot(self.x, self.values) / q2 if q2 else 0.0

    @cached_property
    def best_cell_factors(self) -> Float64Array:
        """The same for each of `cells`, of the codes: what their scales should have been; NaN where all codes are 0."""
        return ratio(self.cells.dot(self.x, self.codes), self.cells.dot(self.codes, self.codes))

    @cached_property
    def cell_amax(self) -> Float32Array:
        """Largest magnitude of the reference in each of `cells`, lines that are not sampled included."""
        cells = self.cells
        if self.is_whole or len(cells.numbers) == len(self.lines):
            return cells.largest(np.abs(self.x))
        first_of = self._first_lines(cells)
        most = np.zeros(cells.shape, np.float32)
        for index, (first, last) in enumerate(first_of):
            for start in range(first, last, 1 + MOST_ELEMENTS // 4 // max(1, self.length)):
                stop = min(last, start + 1 + MOST_ELEMENTS // 4 // max(1, self.length))
                band = np.abs(finite(self.pair.reference_lines.values(start, stop)))
                part = Cells(np.zeros(stop - start, np.intp), cells.width, self.length)
                most[index] = np.maximum(most[index], part.largest(band)[0])
        return most

    def _first_lines(self, cells: Cells) -> list[tuple[int, int]]:
        """First and last line (exclusive) of each row of cells that occurs."""
        scale = self.quantised.grid_scale if self.quantised else None
        every = np.arange(self.pair.lines)
        if scale is not None and scale.layout == "block" and self.quantised is not None:
            rows = line_blocks(self.quantised, scale)
            of_line = every * 0 if rows is None else rows[: self.pair.lines]
        elif scale is not None and scale.layout == "column":
            of_line = every * 0
        else:
            of_line = every // self._lines_of_a_number(scale)
        firsts = np.searchsorted(of_line, cells.numbers, "left")
        lasts = np.searchsorted(of_line, cells.numbers, "right")
        return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]

    @cached_property
    def has_powers_of_two(self) -> bool:
        """Whether all factors that are read are."""
        return bool(np.all(np.frexp(self.factors)[0] == 0.5))

    @cached_property
    def rounding_error(self) -> float:
        """Squared error that these formats leave with the scales that the reference itself would have."""
        if self.fmt is None:
            return 1e-6 * self.sum_x2
        if self.has_powers_of_two:
            scales = e8m0_scales(self.cell_amax, self.fmt, "rceil")
        else:
            scales = np.maximum(self.cell_amax / np.float32(self.fmt.max), np.float32(1e-38))
        spread = self.cells.spread(scales)
        return self.error_of(fake_quantize(self.x / spread, self.fmt) * spread)
