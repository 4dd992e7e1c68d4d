"""What hypotheses are tried on: sampled lines, cut into cells that have one factor each."""

from __future__ import annotations

from functools import cached_property
from math import prod

import numpy as np

from fp8debug.analysis.checkpoint.grids import column_block, line_blocks
from fp8debug.analysis.checkpoint.records import Scale
from fp8debug.analysis.checkpoint.reference.hypotheses.cells import Cells, ratio
from fp8debug.analysis.checkpoint.reference.hypotheses.sample import MOST_ELEMENTS, Sample
from fp8debug.analysis.checkpoint.reference.hypotheses.sums import finite
from fp8debug.formats import Float32Array, Format, fake_quantize
from fp8debug.metrics import Float64Array
from fp8debug.recipes.mx import e8m0_scales

_MATCHED_ELEMENTS = 1 << 17


class Evidence(Sample):
    """Lines of a pair, and what follows from them; each thing is worked out once, when it is asked for."""

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
        # A reference that is rounded itself, or of few values, may happen to lose nothing.
        typical = self.sum_x2 * 10 ** (-self.fmt.baseline_sqnr_db / 10)
        return max(self.error_of(fake_quantize(self.x / spread, self.fmt) * spread), typical / 2)

    def same_codes(self, factors: Float32Array, codes: Float32Array | None = None, fmt: Format | None = None) -> float:
        """Share of the non-zero elements whose code is what rounding the reference with these factors gives.

        What saturates does not count: it would with any smaller factor.

        Args:
            factors: broadcastable to (n, length).
            codes: values of the codes; None: as they are read.
            fmt: their format; None: as it is read.
        """
        fmt = fmt or self.fmt
        if fmt is None:
            return 0.0
        every = max(1, self.n // _MATCHED_ELEMENTS)
        x, c = self.x[::every], (self.codes if codes is None else codes)[::every]
        f = np.broadcast_to(factors, self.x.shape)[::every]
        with np.errstate(all="ignore"):
            scaled = x / f
            same = (fake_quantize(scaled, fmt) == c) & (np.abs(scaled) <= np.float32(fmt.overflow_threshold))
        told = x != 0
        return np.count_nonzero(same & told) / max(1, int(np.count_nonzero(told)))

    @cached_property
    def most_same_codes(self) -> float:
        """The most that a factor gives which is fitted, or follows from the largest values: near 1 where the codes were
        made from these very values. What is 0.1 % off gives 1 % less."""
        if self.fmt is None:
            return 0.0
        fitted = [self.factors * np.float32(self.best_factor)] if self.best_factor > 0 else []
        own = self.cells.spread(np.maximum(self.cell_amax / np.float32(self.fmt.max), np.float32(1e-38)))
        return max(self.same_codes(factors) for factors in [*fitted, own])
