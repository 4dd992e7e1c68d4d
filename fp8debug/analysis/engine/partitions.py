"""Ranges of record keys that share a table's rows about evenly, and the files that hold them.

The ranges come from the statistics in the files' footers alone. They are of (rank, seq) in this order, and the same
for all tables: whatever was stored of a record is in one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import duckdb

from fp8debug.analysis.parts import GoodPart, escape_glob

_STATISTICS = """
select
    file_name, row_group_id, any_value(row_group_num_rows),
    max(stats_min_value::bigint) filter (path_in_schema = 'rank'),
    max(stats_min_value::bigint) filter (path_in_schema = 'seq'),
    max(stats_max_value::bigint) filter (path_in_schema = 'rank'),
    max(stats_max_value::bigint) filter (path_in_schema = 'seq')
from parquet_metadata($files)
where path_in_schema in ('rank', 'seq')
group by file_name, row_group_id
"""


class Key(NamedTuple):
    """A place in the order of records."""

    rank: int
    seq: int


_FIRST, _LAST = Key(-1, -1), Key(2**31 - 1, 2**63 - 1)


class RowGroup(NamedTuple):
    """What its footer says of a row group."""

    first: Key
    """No record in it is before this one."""
    last: Key
    """None is after this one."""
    n_rows: int
    path: str


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The records from `first` up to `end`, which is not among them; None: no limit."""

    first: Key | None
    end: Key | None

    @property
    def condition(self) -> str:
        """As an SQL condition on rank and seq. The first terms alone would do; the others let row groups be skipped."""
        terms = []
        if self.first is not None:
            terms += [f"(rank > {self.first.rank} or seq >= {self.first.seq})", f"rank >= {self.first.rank}"]
        if self.end is not None:
            terms += [f"(rank < {self.end.rank} or seq < {self.end.seq})", f"rank <= {self.end.rank}"]
        if self.first is not None and self.end is not None and self.first.rank == self.end.rank:
            terms += [f"seq >= {self.first.seq}", f"seq < {self.end.seq}"]
        return " and ".join(terms) or "true"

    def may_hold(self, group: RowGroup) -> bool:
        """Whether a record of the row group may be in it."""
        return (self.first is None or group.last >= self.first) and (self.end is None or group.first < self.end)


def row_groups(con: duckdb.DuckDBPyConnection, parts: Sequence[GoodPart]) -> list[RowGroup]:
    """What the footers of `parts` say; a row group without statistics may hold any record."""
    if not parts:
        return []
    rows = con.execute(_STATISTICS, {"files": [escape_glob(part.path) for part in parts]}).fetchall()
    return [
        RowGroup(
            _FIRST if None in (rank, seq) else Key(rank, seq),
            _LAST if None in (last_rank, last_seq) else Key(last_rank, last_seq),
            n_rows,
            path,
        )
        for path, _, n_rows, rank, seq, last_rank, last_seq in rows
    ]


def ranges(groups: Sequence[RowGroup], n: int) -> list[KeyRange]:
    """At most `n` ranges that cover all records, cut between row groups."""
    cuts = dict.fromkeys(_cuts(sorted(groups), n))
    return [KeyRange(first, end) for first, end in pairwise([None, *cuts, None])]


def _cuts(groups: Sequence[RowGroup], n: int) -> Iterator[Key]:
    n_all, n_before, number = sum(group.n_rows for group in groups), 0, 1
    for group in groups:
        if number < n and n_before * n >= number * n_all and n_before:
            yield group.first
            number = n_before * n // n_all + 1
        n_before += group.n_rows
