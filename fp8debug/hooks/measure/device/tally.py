"""The numbers that kernels make of one tensor, in one zeroed piece of the device's memory, and how the host reads them.

Every number grows from zero, so that kernels need nothing but atomic additions and maxima: what is smallest is kept as
its distance from a bound. A counted tensor takes 65,536 counters of 8 bytes (512 KiB; FP8: 2 KiB) until they have been
copied to the host; a tensor whose health is taken, 128 bytes; both a byte a row, for the rows that are not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fp8debug.hooks.dtypes import FP8_DTYPES
from fp8debug.hooks.measure import checksum, codes
from fp8debug.hooks.measure.engine import Counted
from fp8debug.hooks.measure.health import Health

N_ZERO, N_NEG_ZERO, N_NAN, N_POSINF, N_NEGINF, AMAX, AMIN_GAP, FIRST_GAP, N_ROWS, SUM_1, SUM_2 = range(11)
"""Places in the head of the numbers; a gap is the distance from the bound below, 0 when there is nothing."""
HEAD = 16
LARGEST = (1 << 31) - 1
"""No pattern of a magnitude is larger."""
FARTHEST = 1 << 62
"""No element stands here or beyond."""
MAX_ROWS = 1 << 20
"""Of tensors with more rows than this it is not counted how many are not finite."""


class Reading(NamedTuple):
    """What is known of a tensor once its numbers are here."""

    health: Health
    counted: Counted | None
    nonfinite_rows: tuple[int | None, int | None]
    """How many rows have a NaN or Inf (None: too many rows to tell), and the first of them."""


class Bad(NamedTuple):
    """Which codes are not finite: magnitudes from `first` on, and the code `alone`; -1: none."""

    first: int
    alone: int


@dataclass(frozen=True, slots=True)
class Tally:
    """The numbers of one tensor while they are made."""

    way: codes.Route
    n: int
    n_words: int
    """64-bit words of its memory, the last one padded."""
    row_length: int
    counts_values: bool
    numbers: torch.Tensor
    """int64, (HEAD,) or (HEAD + codes,), on the device: the head, then how often each code of `way.counted` occurs."""
    flags: torch.Tensor | None
    """uint8, (rows,): whether a row has a NaN or Inf; None: there are too many rows."""

    @property
    def head(self) -> torch.Tensor:
        """int64, (HEAD,)."""
        return self.numbers[:HEAD]

    @property
    def counts(self) -> torch.Tensor:
        """int64, (codes,)."""
        return self.numbers[HEAD:]

    @property
    def read_as(self) -> torch.dtype:
        """dtype that the health is of."""
        return self.way.source if self.way.health_of_source else self.way.counted

    @property
    def health_by_counts(self) -> bool:
        """Whether the histogram says all that is to be known of the health."""
        return self.counts_values and not self.way.health_of_source

    def finish(self) -> None:
        """Add up the rows, when all elements have been seen."""
        if self.flags is not None:
            torch.sum(self.flags, 0, keepdim=True, dtype=torch.int64, out=self.head[N_ROWS : N_ROWS + 1])


def new_tally(t: torch.Tensor, way: codes.Route, *, counts: bool) -> Tally:
    """Make room for the numbers of a tensor that is not empty, on its device, everything zero."""
    counts = counts or way.counted in FP8_DTYPES  # of FP8 the histogram is the shortest way to the health
    n_numbers = HEAD + (1 << 8 * way.counted.itemsize if counts else 0)
    row_length = t.shape[-1] if t.dim() else 1
    n_rows = t.numel() // row_length
    n_flags = n_rows if n_rows <= MAX_ROWS else 0
    memory = torch.zeros(8 * n_numbers + n_flags, dtype=torch.uint8, device=t.device)
    return Tally(
        way,
        t.numel(),
        -(-t.numel() * t.element_size() // 8),
        row_length,
        counts,
        memory[: 8 * n_numbers].view(torch.int64),
        memory[8 * n_numbers :] if n_flags else None,
    )


def bad_codes(dtype: torch.dtype) -> Bad:
    """Which codes of a dtype are NaN or Inf."""
    if dtype in codes.INFINITY:
        return Bad(codes.INFINITY[dtype], -1)
    return {
        torch.float8_e4m3fn: Bad(0x7F, -1),
        torch.float8_e5m2: Bad(0x7C, -1),
    }.get(dtype, Bad(0x80, 0x80))  # with one NaN, in the place of -0


def read(tally: Tally, numbers: npt.NDArray[np.int64], *, counted: bool) -> Reading:
    """Turn the numbers, on the host, into what is recorded.

    Args:
        numbers: as `Tally.numbers`; changed on the way.
        counted: whether the histogram was asked for.
    """
    way, head, dense = tally.way, numbers[:HEAD], numbers[HEAD:]
    if tally.health_by_counts:
        health = codes.health_of_codes(dense, way.counted)
    else:
        health = _health(tally, head)
        if counted:
            codes.keep_rounded_overflow(dense, health)
    rows = _nonfinite_rows(tally, head) if health.has_nonfinite else (0, None)
    if not counted:
        return Reading(health, None, rows)
    found, counts = codes.sparse(dense, way.counted)
    s1, s2 = (int(number) & checksum.MASK for number in head[SUM_1 : SUM_2 + 1])
    return Reading(health, Counted(health, found, counts, checksum.finish(s1, s2), way.approx), rows)


def _health(tally: Tally, head: npt.NDArray[np.int64]) -> Health:
    amin_gap = int(head[AMIN_GAP])
    n_zero, n_neg_zero, n_nan, n_posinf, n_neginf, amax = (int(number) for number in head[: AMAX + 1])
    amin = codes.value_of(LARGEST - amin_gap, tally.read_as) if amin_gap else None
    return Health(
        tally.n, n_zero, n_neg_zero, n_nan, n_posinf, n_neginf, amin, codes.value_of(amax, tally.read_as)
    )  # fmt: skip


def _nonfinite_rows(tally: Tally, head: npt.NDArray[np.int64]) -> tuple[int | None, int]:
    n_rows = None if tally.flags is None else int(head[N_ROWS])
    return n_rows, (FARTHEST - int(head[FIRST_GAP])) // tally.row_length
