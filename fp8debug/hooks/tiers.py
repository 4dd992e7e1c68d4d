"""Which parts of a rank are merged, and when: seldom enough to be cheap, often enough that files stay few.

Parts of about equal age merge when there are `FAN_IN` of them, and what comes out waits for as many of its kind: each
row is written again log(flushes) times, and a table has less than FAN_IN parts of each kind. Parts that have grown
to `FULL_BYTES` stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

FAN_IN = 32
MOST_SMALL = 4 * FAN_IN
"""Many small parts of unequal kinds, as many restarts leave them: all of them are merged."""
MERGED_BYTES = 64 << 20
"""Largest sum of parts that a writer merges into one."""


class Sized(NamedTuple):
    """A part and its size."""

    name: str
    n_flushes: int
    n_bytes: int
    stays: bool = False
    """It is not to be merged, nor are parts across it."""


Group = Sequence[Sized]


def due(parts: Sequence[Sized], *, at_close: bool = False) -> list[Group]:
    """Groups of adjacent parts to merge now, of those of one rank and table in order; [] when nothing is due.

    At the close more than FAN_IN small parts are merged, whatever their kinds.
    """
    runs = list(small_runs(parts, MERGED_BYTES))
    n_small = sum(len(run) for run in runs)
    if n_small > (FAN_IN if at_close else MOST_SMALL):
        return [group for run in runs for group in bins(run, MERGED_BYTES)]
    of_a_kind = (list(same) for run in runs for _, same in groupby(run, key=_tier))
    return [group for same in of_a_kind if len(same) >= FAN_IN for group in bins(same, MERGED_BYTES)]


def small_runs(parts: Sequence[Sized], merged_bytes: int) -> Iterator[list[Sized]]:
    """Adjacent parts of less than half of `merged_bytes`, between those that stay."""
    for is_small, run in groupby(parts, key=lambda part: not part.stays and part.n_bytes < merged_bytes // 2):
        if is_small:
            yield list(run)


def bins(run: Sequence[Sized], merged_bytes: int) -> Iterator[list[Sized]]:
    """Cut a run of small parts into groups of at most `merged_bytes`; a group of one is left out."""
    group: list[Sized] = []
    for part in run:
        if sum(one.n_bytes for one in group) + part.n_bytes > merged_bytes:
            yield group
            group = []
        group.append(part)
    if len(group) > 1:
        yield group


def _tier(part: Sized) -> int:
    """0 for less than FAN_IN flushes, 1 for less than FAN_IN^2, and so on."""
    tier, flushes = 0, part.n_flushes
    while flushes >= FAN_IN:
        tier, flushes = tier + 1, flushes // FAN_IN
    return tier
