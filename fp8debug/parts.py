"""Names of Parquet parts, and which of them count.

A part holds what one rank handed over in one flush, or in several that follow each other: `part-000007.parquet` holds
flush 7, `part-000000-000063.parquet` flushes 0 to 63. The second kind is made by merging, and appears by one rename
while those that it holds are still there. So a part counts unless another one of its table and rank holds all of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

_NAME = re.compile(r"(?P<table>[^/]+)/rank=(?P<rank>\d+)/part-(?P<first>\d{6,})(-(?P<last>\d{6,}))?\.parquet")


class Part(NamedTuple):
    """What a part holds: flushes `first` to `last` of a rank, both included."""

    table: str
    rank: int
    first: int
    last: int

    @property
    def name(self) -> str:
        """Its name below the run directory."""
        flushes = f"{self.first:06d}" if self.first == self.last else f"{self.first:06d}-{self.last:06d}"
        return f"{self.table}/rank={self.rank}/part-{flushes}.parquet"


def parse_part(name: str) -> Part | None:
    """What the name of a file below the run directory says; None when it is no part of a rank."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first = int(match["first"])
    return Part(match["table"], int(match["rank"]), first, int(match["last"] or first))


def live_parts(names: Iterable[str]) -> list[str]:
    """The names of parts that count, by rank and flush; other names are left out."""
    live: list[str] = []
    parts = sorted(((part, name) for name in names if (part := parse_part(name)) is not None), key=_widest_first)
    for _, of_rank in groupby(parts, key=lambda found: found[0][:2]):
        last = -1
        for part, name in of_rank:
            if part.last > last:
                live.append(name)
                last = part.last
    return live


def _widest_first(found: tuple[Part, str]) -> tuple[str, int, int, int]:
    part = found[0]
    return part.table, part.rank, part.first, -part.last
