"""Ranges of keys: every record is in one of them, and each of its files is read there."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug.analysis.engine.partitions import Key, KeyRange, RowGroup, ranges, row_groups
from fp8debug.analysis.parts import GoodPart

KEYS = st.builds(Key, st.integers(0, 3), st.integers(0, 9))
GROUPS = st.lists(
    st.tuples(KEYS, KEYS, st.integers(1, 100)).map(lambda t: RowGroup(min(t[:2]), max(t[:2]), t[2], "file")),
    min_size=1,
    max_size=8,
)


def holds(con: duckdb.DuckDBPyConnection, part: KeyRange, key: Key) -> bool:
    """As the condition has it, read by DuckDB."""
    query = f"select {part.condition} from (select {key.rank} as rank, {key.seq} as seq)"
    return bool(con.execute(query).fetchall()[0][0])


@settings(max_examples=40)
@given(GROUPS, st.integers(1, 6), st.data())
def test_a_record_is_in_one_range_and_its_files_are_read_there(
    groups: list[RowGroup], n: int, data: st.DataObject
) -> None:
    group = data.draw(st.sampled_from(groups))
    key = data.draw(KEYS.filter(lambda key: group.first <= key <= group.last))
    found = ranges(groups, n)
    assert 1 <= len(found) <= n
    (part,) = [part for part in found if (part.first is None or key >= part.first) and (not part.end or key < part.end)]
    assert part.may_hold(group)


@pytest.mark.parametrize("part", [
    KeyRange(None, None), KeyRange(None, Key(1, 5)), KeyRange(Key(1, 5), None), KeyRange(Key(1, 2), Key(1, 5)),
    KeyRange(Key(0, 7), Key(2, 1)),
])  # fmt: skip
def test_the_condition_is_the_range(part: KeyRange) -> None:
    with duckdb.connect() as con:
        for key in (Key(rank, seq) for rank in range(3) for seq in range(9)):
            expected = (part.first is None or key >= part.first) and (part.end is None or key < part.end)
            assert holds(con, part, key) == expected, key


def test_rows_are_shared_evenly() -> None:
    groups = [RowGroup(Key(rank, 0), Key(rank, 99), 10, str(rank)) for rank in range(12)]
    found = ranges(groups, 4)
    assert [sum(part.may_hold(group) for group in groups) for part in found] == [3, 3, 3, 3]


def test_footers_say_where_records_are(several_ranks: Path) -> None:
    parts = [GoodPart(str(path), frozenset()) for path in sorted(several_ranks.glob("tensors/rank=*/*.parquet"))]
    with duckdb.connect() as con:
        groups = sorted(row_groups(con, parts))
    assert [group.first.rank for group in groups] == [0] * 6 + [1] * 6 + [2] * 6
    assert sum(group.n_rows for group in groups) == 3 * 24 * 2
    assert all(group.first.rank == group.last.rank and group.first.seq < group.last.seq for group in groups)


def test_without_statistics_a_file_may_hold_anything(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"rank": [5], "seq": [7]}), path, write_statistics=False)
    with duckdb.connect() as con:
        (group,) = row_groups(con, [GoodPart(str(path), frozenset())])
    assert KeyRange(None, Key(0, 1)).may_hold(group) and KeyRange(Key(9, 9), None).may_hold(group)
