"""A tensor of a checkpoint and the same tensor of a reference, and the sums of the difference between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from fp8debug.analysis.checkpoint.records import Quantised, Stored
from fp8debug.analysis.checkpoint.reference.blocks import BlockSums, CodeSums
from fp8debug.analysis.checkpoint.reference.lines import Lines, PlainLines, QuantisedLines, lines_of
from fp8debug.analysis.checkpoint.reference.summing import (
    Rows,
    add_code_band,
    add_to_rows,
    band_sums,
    rows_of,
    runs_of,
    starts_of,
)
from fp8debug.analysis.checkpoint.store import Store
from fp8debug.formats import Float32Array
from fp8debug.metrics import Float64Array

BAND_ELEMENTS = 1 << 18
"""Elements of a tensor that are held at a time: 2 MB in float64."""
MOST_BLOCKS = 1_000_000
"""Sums of more blocks are not kept: rows of blocks are taken together."""
MOST_CODE_BLOCKS = 2_000_000
"""Of blocks that must have one factor each, rows are left out beyond that."""


@dataclass(eq=False)
class Pair:
    """A checkpoint's tensor and the reference's."""

    store: Store
    tensor: Quantised | Stored
    """Of this checkpoint; `quantised` where that is known to be one."""
    reference_store: Store
    reference: Quantised | Stored
    """Of the reference; the first one, where several together are the same tensor."""
    reference_lines: Lines
    """Its values, in the order of this checkpoint's lines."""
    lines: int = 0
    """Lines that both have."""
    _code_sums: dict[tuple[int, int] | None, CodeSums] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Take all lines that both have, where nobody says how many."""
        self.lines = self.lines or min(self.tensor.lines, self.reference_lines.lines)

    @property
    def name(self) -> str:
        """Of this checkpoint's tensor."""
        return self.tensor.name

    @property
    def quantised(self) -> Quantised:
        """This checkpoint's tensor, of which it is known that it is quantised."""
        assert isinstance(self.tensor, Quantised)
        return self.tensor

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.tensor.length

    @property
    def block(self) -> tuple[int, int]:
        """Lines x columns of the grid that sums are kept for, before rows are taken together."""
        scale = self.tensor.grid_scale if isinstance(self.tensor, Quantised) else None
        if scale is not None and scale.layout == "block" and scale.block is not None:
            return scale.block
        if scale is not None and scale.layout == "column":
            return max(1, self._matrix_lines), 1
        return 1, max(1, self.length)

    def bands(
        self, grids: dict[str, Float32Array] | None = None, quantised: Quantised | None = None
    ) -> Iterator[tuple[int, Float32Array, Float32Array]]:
        """First line, values of the reference, and ours: float32 (lines, length), some MB at a time."""
        ours = lines_of(self.store, quantised or self.tensor, grids)
        for first, last in self._steps():
            yield first, self.reference_lines.values(first, last), ours.values(first, last)

    def code_bands(self) -> Iterator[tuple[int, Float32Array, Float32Array]]:
        """The same with the values of our codes, no scale applied; our values where they are plain."""
        ours = lines_of(self.store, self.tensor)
        for first, last in self._steps():
            yield first, self.reference_lines.values(first, last), _codes(ours, first, last)

    def sums(
        self,
        grids: dict[str, Float32Array] | None = None,
        fmt: str | None = None,
        quantised: Quantised | None = None,
    ) -> BlockSums:
        """Sums of each block, in one pass over both tensors.

        Args:
            grids: other factors than those stored, by name of the scale, see `grids.grid_of`.
            fmt: another format to read the codes in.
            quantised: another reading of the tensor altogether.
        """
        if fmt is not None:
            quantised = replace(quantised or self.quantised, fmt=fmt)
        return self.sums_and_lines(grids, quantised)[0]

    def sums_and_lines(
        self, grids: dict[str, Float32Array] | None = None, quantised: Quantised | None = None
    ) -> tuple[BlockSums, BlockSums]:
        """Sums of each block, and of each line: (lines, 1)."""
        rows, width = self._grid(MOST_BLOCKS)
        shape = (int(rows[-1]) + 1 if len(rows) else 0, -(-self.length // width))
        sums = BlockSums(*(np.zeros(shape) for _ in range(6)))
        of_lines = BlockSums(*(np.zeros((self.lines, 1)) for _ in range(6)))
        for first, x, q in self.bands(grids, quantised):
            band, last = band_sums(x, q, width), first + len(x)
            for name in BlockSums.__slots__:
                add_to_rows(getattr(sums, name), rows[first:last], getattr(band, name))
                getattr(of_lines, name)[first:last, 0] = getattr(band, name).sum(axis=1)
        return sums, of_lines

    def code_sums(self, block: tuple[int, int] | None = None) -> CodeSums:
        """Sums over codes in one pass, kept: what hypotheses about factors alone are answered from.

        Args:
            block: lines x columns that have one factor each under all that is to be asked; None: those of the scale.
        """
        if block not in self._code_sums:
            self._code_sums[block] = self._sum_codes(block or self.block)
        return self._code_sums[block]

    @property
    def keeps_all_blocks(self) -> bool:
        """Whether `sums` are of the very blocks of the scale, not of several rows of them together."""
        return len(self.block_starts()) * -(-self.length // self.block[1]) <= MOST_BLOCKS

    def block_starts(self) -> Rows:
        """First line of each row of blocks, where `sums` are of single blocks."""
        return starts_of(self.block_rows)

    def factors_at(self, lines: Rows, width: int, of: Lines | None = None) -> Float64Array:
        """The stored factor at these lines and every `width` columns, float64; 1 for plain tensors.

        Args:
            lines: ascending.
            width: columns from one to the next.
            of: lines of another tensor, or of this one read otherwise; None: of this checkpoint's.
        """
        ours = lines_of(self.store, self.tensor) if of is None else of
        factors = np.ones((len(lines), -(-self.length // width)))
        if not isinstance(ours, QuantisedLines):
            return factors
        done = 0
        while done < len(lines):
            first = int(lines[done])
            stop = int(np.searchsorted(lines, first + self._step))
            last = int(lines[stop - 1]) + 1
            band = np.broadcast_to(ours.factors(first, last), (last - first, self.length))
            factors[done:stop] = band[lines[done:stop] - first, ::width]
            done = stop
        return factors

    def code_factors(
        self,
        sums: CodeSums,
        grids: dict[str, Float32Array] | None = None,
        quantised: Quantised | None = None,
    ) -> Float64Array:
        """The factor of each block of `sums`, float64, under these grids: `sums.times` takes it; 1 for plain tensors.

        Blocks have to have one factor each: that of the first line and column is taken.
        """
        return self.factors_at(sums.lines, sums.width, lines_of(self.store, quantised or self.tensor, grids))

    @property
    def block_rows(self) -> Rows:
        """For each line its row of blocks."""
        return rows_of(self.lines, max(1, self._matrix_lines), self.block[0])

    @property
    def _matrix_lines(self) -> int:
        return self.tensor.shape[-2] if len(self.tensor.shape) > 1 else 1

    @property
    def _step(self) -> int:
        """Lines that are held at a time."""
        return max(1, BAND_ELEMENTS // max(1, self.length))

    def _steps(self) -> Iterator[tuple[int, int]]:
        for first in range(0, self.lines, self._step):
            yield first, min(self.lines, first + self._step)

    def _grid(self, most: int) -> tuple[Rows, int]:
        """For each line its row of blocks, and the columns of a block."""
        rows, width = self.block_rows, self.block[1]
        blocks = (int(rows[-1]) + 1 if len(rows) else 0) * -(-self.length // width)
        return rows // max(1, -(-blocks // most)), width

    def _sum_codes(self, block: tuple[int, int]) -> CodeSums:
        rows = rows_of(self.lines, max(1, self._matrix_lines), block[0])
        starts = starts_of(rows)
        columns = -(-self.length // block[1])
        every = max(1, -(-len(starts) * columns // MOST_CODE_BLOCKS))
        kept = np.arange(0, len(starts), every)
        shape = (len(kept), columns)
        sums = CodeSums(starts[kept], block[1], every > 1, *(np.zeros(shape) for _ in range(5)))
        ours = lines_of(self.store, self.tensor)
        for first, last in self._steps() if every == 1 else runs_of(starts, kept, self.lines, self._step):
            x, c = self.reference_lines.values(first, last), _codes(ours, first, last)
            add_code_band(sums, rows[first:last] // every, x, c)
        return sums


def _codes(ours: QuantisedLines | PlainLines, first: int, last: int) -> Float32Array:
    return ours.codes(first, last) if isinstance(ours, QuantisedLines) else ours.values(first, last)
