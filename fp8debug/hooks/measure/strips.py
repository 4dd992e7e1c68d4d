"""Which lines of a tensor are looked at where looking at all would cost too much, and those lines as FP32 matrices.

The sample is strips of 128 whole lines, evenly spaced, always the same ones: every block of every recipe that lies in
a strip lies there whole. A line runs along the blocks' axis: in row orientation it is a row of the tensor seen as
(rows, last dimension), in column orientation a column.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from fp8debug.formats import Float32Array
from fp8debug.hooks.measure import codes

STRIP = 128
"""Lines of a strip: the largest block of any recipe is 128x128."""
BUDGET = 1 << 18
"""Elements up to which a tensor is looked at whole, and to which strips are added; there is always one."""


@dataclass(frozen=True, slots=True)
class Strip:
    """Some whole lines, the blocks' axis last."""

    first: int
    """Line of the tensor that comes first."""
    length: int
    """Elements of a line."""
    x: Float32Array
    """(lines, columns): values as the GEMM reads them, or rotated; columns beyond `length`, up to the next multiple of
    128, are zeros."""
    read: Float32Array
    """What is quantised: `x` itself unless rotated (then it is rounded to BF16)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The strips that are looked at of one tensor in one orientation."""

    orientation: str
    """row | column"""
    n_lines: int
    length: int
    """Elements of a line."""
    starts: tuple[int, ...]
    """First lines of the strips, multiples of 128."""

    @property
    def is_whole(self) -> bool:
        """Whether every line is in it."""
        return len(self.starts) * STRIP >= self.n_lines

    @property
    def text(self) -> str:
        """`all`, or `lines a:b,c:d` as Python slices them."""
        if self.is_whole:
            return "all"
        return "lines " + ",".join(f"{start}:{min(start + STRIP, self.n_lines)}" for start in self.starts)

    @property
    def n_total(self) -> int:
        """Elements of the whole tensor."""
        return self.n_lines * self.length

    @property
    def n_sampled_lines(self) -> int:
        """Lines of all strips together."""
        return sum(min(STRIP, self.n_lines - start) for start in self.starts)

    def strips(self, matrix: torch.Tensor, gemm_dtype: torch.dtype) -> Iterator[Strip]:
        """Copy the strips of `matrix` (see `as_matrix`) to FP32, rounded first to what the GEMM reads.

        All share one buffer: each is valid until the next one is asked for.
        """
        way = codes.route(matrix.dtype, gemm_dtype)
        buffer = np.zeros((min(STRIP, self.n_lines), -(-self.length // STRIP) * STRIP), np.float32)
        target = torch.from_numpy(buffer)
        for start in self.starts:
            stop = min(start + STRIP, self.n_lines)
            part = matrix[start:stop] if self.orientation == "row" else matrix[:, start:stop]
            part = part.to("cpu", way.source)
            if not way.health_of_source:
                part = part.to(way.counted)
            if self.orientation == "column":
                part = part.to(torch.float32).t()  # converted in memory order, then transposed
            target[: stop - start, : self.length].copy_(part)
            lines = buffer[: stop - start]
            yield Strip(start, self.length, lines, lines)


def as_matrix(t: torch.Tensor) -> torch.Tensor:
    """A tensor of any shape, not empty, as (rows, last dimension); a vector is one row."""
    return t.detach().reshape(-1, t.shape[-1]) if t.dim() else t.detach().reshape(1, 1)


def sample_of(matrix: torch.Tensor, orientation: str, budget: int = BUDGET) -> Sample:
    """Choose the strips: all if they hold at most `budget` elements, else as many as do, at least one.

    Strip i of k stands in the middle of the i-th k-th of the tensor.
    """
    n_lines, length = matrix.shape if orientation == "row" else matrix.shape[::-1]
    present = -(-n_lines // STRIP)
    is_cheap = n_lines * length <= budget
    wanted = present if is_cheap else min(present, max(1, budget // (STRIP * length)))
    chosen = ((2 * i + 1) * present // (2 * wanted) for i in range(wanted))
    return Sample(orientation, n_lines, length, tuple(number * STRIP for number in chosen))
