"""Merged parts: the same rows at every instant, whoever is killed or reads, and few files after a month."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fp8debug.errors import Fp8DebugError
from fp8debug.generations import COMPACTION_LOCK, READERS_LOCK, is_part, read_generation
from fp8debug.hooks import compaction, merging, own_parts, tiers
from fp8debug.hooks.compaction import compact
from fp8debug.hooks.encoding import write_part
from fp8debug.hooks.merging import merge_parts
from fp8debug.hooks.tables import ARROW_SCHEMAS, Batch
from fp8debug.hooks.tiers import MERGED_BYTES, Sized, due
from fp8debug.hooks.writer import PartWriter
from fp8debug.rundir import Manifest, RunDir
from fp8debug.storage import LocalStorage

TABLES = ("events", "histograms")


class Killed(BaseException):
    """As when the process ends here: nothing of ours runs after it."""


def batch_of(rank: int, number: int) -> Batch:
    """One event and one histogram of three values, all told apart by rank and number."""
    batch = Batch()
    batch.rows["events"].append((0, number, rank, 1.5, "assumption", None, None, f"event {number}"))
    values = np.array([-1.0, 0.5, number], np.float32)
    batch.histograms.append((0, rank, number, "high"), values, np.array([1, number + 1, 3]))
    return batch


def write_flushes(run_dir: RunDir, flushes: range, ranks: range = range(1)) -> None:
    for rank in ranks:
        writer = PartWriter(run_dir, rank)
        for number in flushes:
            writer.write(batch_of(rank, number))


def expected(flushes: range, ranks: range = range(1)) -> Counter[tuple[Any, ...]]:
    events = [("events", rank, number, f"event {number}") for rank in ranks for number in flushes]
    values = [
        ("histograms", rank, number, value, count)
        for rank in ranks
        for number in flushes
        for value, count in ((-1.0, 1), (0.5, number + 1), (float(number), 3))
    ]
    return Counter([*events, *values])


def rows(run_dir: RunDir, *tables: str) -> Counter[tuple[Any, ...]]:
    """Every row that counts, by key."""
    found: Counter[tuple[Any, ...]] = Counter()
    for table in tables or TABLES:
        columns = {"events": ["rank", "step", "message"], "histograms": ["rank", "seq", "value", "count"]}[table]
        for name in run_dir.part_names(table):
            part = pq.read_table(pa.BufferReader(run_dir.storage.read(name)), columns=columns).to_pydict()
            found.update((table, *row) for row in zip(*part.values(), strict=True))
    return found


def files(run_dir: RunDir) -> list[str]:
    return [name for table in TABLES for name in run_dir.storage.names(table)]


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    found = RunDir(tmp_path / "run")
    found.write_manifest(Manifest(run_id="r", command=["train.py"], created_at="2026-01-01T00:00:00", status="closed"))
    (found.folder / READERS_LOCK).touch()
    return found


def _before(counted: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: counted(original, *arguments, **named)


@contextmanager
def dying_at(number: int) -> Iterator[Callable[[], int]]:
    """End the process, as it were, when it is about to do operation `number` on the storage; yields how many it did."""
    n_done = 0

    def counted(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        nonlocal n_done
        if n_done == number:
            raise Killed
        n_done += 1
        return original(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        for name in ("remove", "writing"):
            patch.setattr(LocalStorage, name, _before(counted, getattr(LocalStorage, name)))
        yield lambda: n_done


# -- which parts, and when ----------------------------------------------------------------------------------------


def simulate(n_flushes: int, n_bytes: int, *, killed_every: int = 0) -> tuple[int, int, float]:
    """Parts at most and at the end, and bytes written again over bytes written, of a rank that flushes so often."""
    parts: list[Sized] = []
    most, rewritten = 0, 0
    for number in range(n_flushes):
        parts.append(Sized(str(number), 1, n_bytes))
        most = max(most, len(parts))
        at_close = killed_every > 0 and (number + 1) % killed_every == 0
        if (number + 1) % tiers.FAN_IN == 0 or at_close:
            while groups := due(parts, at_close=at_close):
                for group in groups:
                    at, total = parts.index(group[0]), sum(part.n_bytes for part in group)
                    assert total <= MERGED_BYTES
                    assert list(group) == parts[at : at + len(group)], "only adjacent parts merge"
                    parts[at : at + len(group)] = [Sized(group[0].name, sum(p.n_flushes for p in group), total)]
                    rewritten += total
    assert sum(part.n_flushes for part in parts) == n_flushes
    return most, len(parts), rewritten / (n_flushes * n_bytes)


def test_a_month_leaves_few_files_and_writes_each_row_few_times() -> None:
    """Flushes every 300 s for 30 days, after 134 more frequent ones; limits from FAN_IN = 32: log_32(8774) = 2.6."""
    most, end, rewritten = simulate(134 + 30 * 288, n_bytes=4000)
    assert most <= 31 + 31 + 8 + 1
    assert end <= 31 + 31 + 8
    assert rewritten <= 2
    large_most, _, large_rewritten = simulate(1000, n_bytes=3_000_000)
    assert large_most <= 3_000_000_000 / (MERGED_BYTES / 2) + 32, "large parts stay: as many as there are bytes"
    assert large_rewritten < 2


def test_restarts_leave_few_files_too() -> None:
    assert simulate(3000, n_bytes=4000, killed_every=7)[0] <= tiers.MOST_SMALL + 8


def test_nothing_is_merged_across_a_part_that_stays() -> None:
    parts = [Sized(str(i), 1, 10, stays=i == 20) for i in range(60)]
    assert [[part.name for part in group] for group in due(parts)] == [[str(i) for i in range(21, 60)]]


# -- what is written ----------------------------------------------------------------------------------------------


def test_a_merged_file_is_as_one_of_a_flush(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns, meanings, encodings, statistics, order of rows; row groups as full as they may be."""
    monkeypatch.setattr("fp8debug.hooks.encoding._ROW_GROUP_ROWS", {"histograms": 64})
    monkeypatch.setattr(merging, "BATCH_ROWS", 7)
    write_flushes(run_dir, range(50))
    names = run_dir.part_names("histograms")
    assert merge_parts(run_dir.storage, "histograms", names, "histograms/all.parquet") == 150
    one, merged = (pq.ParquetFile(run_dir.folder / name) for name in (names[0], "histograms/all.parquet"))
    assert merged.schema_arrow.equals(one.schema_arrow, check_metadata=True)
    groups = [merged.metadata.row_group(i) for i in range(merged.num_row_groups)]
    assert [group.num_rows for group in groups] == [64, 64, 22]
    for place in range(len(merged.schema_arrow)):
        ours, theirs = groups[0].column(place), one.metadata.row_group(0).column(place)
        assert (ours.encodings, ours.compression) == (theirs.encodings, theirs.compression)
        assert (ours.statistics is None) == (theirs.statistics is None)
    assert (groups[1].column(2).statistics.min, groups[1].column(2).statistics.max) == (21, 42)
    assert merged.read()["seq"].to_pylist() == [number for number in range(50) for _ in range(3)]


def test_long_rows_are_merged_in_little_memory(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MB of raw values with room for one: 4 kB a row."""
    monkeypatch.setattr("fp8debug.hooks.encoding.GROUP_BYTES", 1 << 20)
    monkeypatch.setattr("fp8debug.hooks.encoding._ROW_GROUP_ROWS", {})
    monkeypatch.setattr(merging, "BATCH_BYTES", 1 << 18)
    rng = np.random.default_rng(0)
    for number in range(4):
        made = [{"row": i, "values": rng.standard_normal(1024, np.float32)} for i in range(1000)]
        part = run_dir.part_name("values", 0, number)
        write_part(pa.Table.from_pylist(made, schema=ARROW_SCHEMAS["values"]), "values", run_dir.storage, part)
    names, most = run_dir.part_names("values"), 0

    def watched(*arguments: Any) -> Iterator[pa.RecordBatch]:
        nonlocal most
        for batch in original(*arguments):
            most = max(most, pa.total_allocated_bytes())
            yield batch

    original = merging._conforming
    monkeypatch.setattr(merging, "_conforming", watched)
    before = pa.total_allocated_bytes()
    assert merge_parts(run_dir.storage, "values", names, "values/all.parquet") == 4000
    assert most - before < 10 << 20, "where all of it is 16 MB"
    merged = pq.read_table(run_dir.folder / "values/all.parquet")
    assert merged.equals(pa.concat_tables(pq.read_table(run_dir.folder / name) for name in names))


def test_rows_of_an_older_version_get_the_columns_of_this_one(run_dir: RunDir) -> None:
    """`shard` came with schema version 2."""
    table = pa.Table.from_pylist([{"step": 3, "layer": "fc", "shape": [2, 3]}], schema=ARROW_SCHEMAS["tensors"])
    write_part(table.drop_columns(["shard", "rows"]), "tensors", run_dir.storage, run_dir.part_name("tensors", 0, 0))
    write_part(table, "tensors", run_dir.storage, run_dir.part_name("tensors", 0, 1))
    with pytest.raises(merging.UnreadablePart, match="other columns"):
        write_part(table.drop_columns(["step"]), "tensors", run_dir.storage, "tensors/x.parquet")
        merge_parts(run_dir.storage, "tensors", ["tensors/x.parquet"], "tensors/y.parquet")
    merge_parts(run_dir.storage, "tensors", run_dir.part_names("tensors"), "tensors/z.parquet")
    assert pq.read_table(run_dir.folder / "tensors/z.parquet").to_pylist() == table.to_pylist() * 2


# -- the writer of a rank -----------------------------------------------------------------------------------------


def test_a_writer_merges_its_parts_while_it_writes_and_at_the_close(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 4)
    monkeypatch.setattr("fp8debug.hooks.writer.FAN_IN", 4)
    writer = PartWriter(run_dir, 0)
    writer.start()
    for number in range(23):
        writer.submit(batch_of(0, number))
    writer.close()
    assert writer.error is None
    assert rows(run_dir) == expected(range(23))
    assert [name.rpartition("/")[2] for name in files(run_dir)] == ["part-000000-000022.parquet"] * 2
    assert pq.read_table(run_dir.folder / run_dir.part_names("events")[0])["step"].to_pylist() == list(range(23))


def test_merges_of_a_writer_that_dies_lose_nothing(
    tmp_path: Path, run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every operation of a merge in turn; the next writer goes on, cleans up, and numbers after what was merged."""
    monkeypatch.setattr(tiers, "FAN_IN", 4)
    write_flushes(run_dir, range(5))
    for number in range(100):
        victim = RunDir(shutil.copytree(run_dir.folder, tmp_path / str(number)))
        with dying_at(number) as seen:
            try:
                own_parts.OwnParts(victim, 0).merge_due("events")
                break
            except Killed:
                pass
        assert rows(victim) == expected(range(5))
        (victim.folder / "events/rank=0/.part-000005.parquet.tmp77-1").touch()
        write_flushes(victim, range(5, 6))
        own_parts.OwnParts(victim, 0).merge_due("events")
        assert rows(victim) == expected(range(6))
        assert files(victim)[0] in (
            "events/rank=0/part-000000-000004.parquet", "events/rank=0/part-000000-000005.parquet"
        )  # fmt: skip
        assert len(victim.storage.names("events")) <= 2
    assert seen() == 1 + 5, "one file written, five that go"


def test_a_part_that_cannot_be_read_is_not_merged(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 3)
    write_flushes(run_dir, range(7))
    torn = run_dir.part_path("events", 0, 3)
    torn.write_bytes(torn.read_bytes()[:-9])
    own_parts.OwnParts(run_dir, 0).merge_due("events")
    assert [name.rpartition("/")[2] for name in run_dir.part_names("events")] == [
        "part-000000-000002.parquet",
        "part-000003.parquet",
        "part-000004-000006.parquet",
    ]


def test_a_merge_that_fails_is_no_error_of_the_capture(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp8debug.hooks.writer.FAN_IN", 2)
    monkeypatch.setattr(own_parts, "merge_parts", lambda *_: 1 / 0)
    monkeypatch.setattr(tiers, "FAN_IN", 2)
    writer = PartWriter(run_dir, 0)
    writer.start()
    for number in range(3):
        writer.submit(batch_of(0, number))
    writer.close()
    assert writer.error is None
    assert rows(run_dir) == expected(range(3))


def test_who_reads_while_a_writer_merges_sees_each_flush_once(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "FAN_IN", 3)
    monkeypatch.setattr("fp8debug.hooks.writer.FAN_IN", 3)
    writer = PartWriter(run_dir, 0)

    def write() -> None:
        for number in range(45):
            writer.submit(batch_of(0, number))

    writer.start()
    thread = threading.Thread(target=write)
    thread.start()
    seen: list[int] = []
    while not seen or seen[-1] < 45:
        reader = run_dir.storage.share(READERS_LOCK)
        assert reader is not None
        found = rows(run_dir, "events")
        reader.release()
        assert found == Counter({("events", 0, number, f"event {number}"): 1 for number in range(len(found))})
        seen.append(len(found))
    thread.join()
    writer.close()
    assert seen == sorted(seen)
    assert rows(run_dir) == expected(range(45))


# -- all ranks ----------------------------------------------------------------------------------------------------


def test_a_compacted_run_has_the_same_rows_in_few_files(run_dir: RunDir) -> None:
    """Rank by rank, in order of flushes; what a killed process left goes too."""
    write_flushes(run_dir, range(5), range(3))
    (run_dir.folder / "events/rank=1/.part-000005.parquet.tmp77-1").touch()
    (run_dir.folder / "events/generation=1").mkdir()
    (run_dir.folder / "events/generation=1/part-000007.parquet").touch()
    lines: list[str] = []
    done = compact(run_dir, lines.append)
    assert rows(run_dir) == expected(range(5), range(3))
    assert files(run_dir) == [f"{table}/generation=1/part-000000.parquet" for table in TABLES]
    assert (done.n_files_before, done.n_files, done.generation, done.n_files_left) == (31, 2, 1, 0)
    assert done.n_bytes == sum((run_dir.folder / name).stat().st_size for name in files(run_dir)) < done.n_bytes_before
    assert sorted(lines) == ["events: 15 files into 1", "histograms: 15 files into 1"]
    table = pq.read_table(run_dir.folder / files(run_dir)[0])
    keys = list(zip(table["rank"].to_pylist(), table["step"].to_pylist(), strict=True))
    assert keys == [(rank, step) for rank in range(3) for step in range(5)]
    assert run_dir.ranks_with_parts("events") == {0, 1, 2}
    again = compact(run_dir)
    assert (again.n_files, again.generation) == (2, 1), "there is nothing to do"


def test_a_compaction_that_dies_loses_nothing(tmp_path: Path, run_dir: RunDir) -> None:
    """At every operation in turn: readers find each row once, and the next one does the rest."""
    write_flushes(run_dir, range(2), range(2))
    compact(run_dir)
    write_flushes(run_dir, range(2, 4), range(2))
    everything = expected(range(4), range(2))
    for number in range(100):
        victim = RunDir(shutil.copytree(run_dir.folder, tmp_path / str(number)))
        with dying_at(number) as seen:
            try:
                compact(victim)
                break
            except Killed:
                pass
        assert rows(victim) == everything
        compact(victim)
        assert rows(victim) == everything
        assert len(files(victim)) == 2
    assert seen() == 2 + 1 + 10, "two tables, CURRENT, ten files that go"


def test_a_process_that_is_killed_while_it_compacts(run_dir: RunDir) -> None:
    """kill -9 at instants all over a compaction that starts again each time."""
    write_flushes(run_dir, range(12), range(2))
    everything = expected(range(12), range(2))
    killed = 0
    for delay in (0.002, 0.01, 0.02, 0.03, 0.05, 0.07):
        pid = os.fork()
        if pid == 0:
            try:
                compact(run_dir)
            finally:
                os._exit(0)
        timer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))
        timer.start()
        _, status = os.waitpid(pid, 0)
        timer.cancel()
        timer.join()
        killed += os.WIFSIGNALED(status)
        assert rows(run_dir) == everything
    assert killed >= 2
    compact(run_dir)
    assert rows(run_dir) == everything
    assert len(files(run_dir)) == 2
    assert not run_dir.storage.leftovers()


def test_a_full_disk_leaves_the_run_as_it_was(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flushes(run_dir, range(3))
    before = files(run_dir)

    def full(storage: Any, table: str, *others: Any) -> int:
        if table == "histograms":
            raise OSError(28, "No space left on device")
        return merge_parts(storage, table, *others)

    monkeypatch.setattr(compaction, "merge_parts", full)
    with pytest.raises(Fp8DebugError, match=r"is not compacted .*No space left.*holds what it held before"):
        compact(run_dir)
    assert files(run_dir) == before
    assert rows(run_dir) == expected(range(3))


def test_a_file_that_cannot_be_read_stays_where_readers_see_it(run_dir: RunDir) -> None:
    write_flushes(run_dir, range(4))
    torn = run_dir.part_path("events", 0, 1)
    torn.write_bytes(torn.read_bytes()[:-9])
    for _ in range(2):
        done = compact(run_dir)
        assert run_dir.part_names("events") == [
            "events/rank=0/part-000000.parquet",
            "events/rank=0/part-000001.parquet",
            "events/generation=1/part-000000.parquet",
        ]
        (reason,) = done.unreadable
        assert reason.startswith("events/rank=0/part-000001.parquet: ")


def test_a_resumed_run_goes_on_after_what_was_merged(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_flushes(run_dir, range(4))
    compact(run_dir)
    monkeypatch.setattr(tiers, "FAN_IN", 3)
    monkeypatch.setattr("fp8debug.hooks.writer.FAN_IN", 3)
    writer = PartWriter(run_dir, 0)
    writer.start()
    for number in range(4, 12):
        writer.submit(batch_of(0, number))
    writer.close()
    assert run_dir.part_names("events")[:2] == [
        "events/generation=1/part-000000.parquet",
        "events/rank=0/part-000004-000008.parquet",
    ]
    assert rows(run_dir) == expected(range(12))
    compact(run_dir)
    assert run_dir.part_names("events") == ["events/generation=2/part-000000.parquet"]
    assert rows(run_dir) == expected(range(12))


def test_a_run_that_is_written_or_compacted_is_refused(run_dir: RunDir) -> None:
    write_flushes(run_dir, range(3))
    writer = PartWriter(run_dir, 2)
    writer.start()
    with pytest.raises(Fp8DebugError, match=r"is being written \(rank 2\); expected a run that has ended"):
        compact(run_dir)
    writer.close()
    held = run_dir.storage.hold(COMPACTION_LOCK)
    with pytest.raises(Fp8DebugError, match="is being compacted by another process"):
        compact(run_dir)
    own_parts.OwnParts(run_dir, 0).merge_at_close(["events"])
    held.release()
    assert len(files(run_dir)) == 6
    compact(run_dir)


def test_files_that_somebody_reads_stay_until_the_next_time(run_dir: RunDir) -> None:
    write_flushes(run_dir, range(3))
    reader = run_dir.storage.share(READERS_LOCK)
    assert reader is not None
    old = run_dir.part_names("events")
    assert compact(run_dir).n_files_left == 6
    assert all((run_dir.folder / name).exists() for name in old)
    assert rows(run_dir) == expected(range(3))
    reader.release()
    assert compact(run_dir).n_files_left == 0
    assert len(files(run_dir)) == 2


def test_where_readers_cannot_be_seen_files_go_one_merge_later(run_dir: RunDir) -> None:
    """As in a run that an older version wrote: who reads it has found no file to share."""
    write_flushes(run_dir, range(3))
    (run_dir.folder / READERS_LOCK).unlink()
    assert run_dir.storage.share(READERS_LOCK) is None
    assert compact(run_dir).n_files_left == 6
    assert rows(run_dir) == expected(range(3))
    assert compact(run_dir).n_files_left == 0


def test_a_run_in_an_object_store() -> None:
    """There nobody can tell who reads: what a merge supersedes goes with the next one."""
    fsspec.filesystem("memory").store.clear()
    far = RunDir("memory://bucket/run")
    far.write_manifest(Manifest(run_id="r", command=["t"], created_at="2026-01-01T00:00:00", status="closed"))
    write_flushes(far, range(3), range(2))
    assert compact(far).n_files_left == 12
    assert rows(far) == expected(range(3), range(2))
    write_flushes(far, range(3, 5), range(2))
    compact(far)
    assert rows(far) == expected(range(5), range(2))
    assert compact(far).n_files == 2
    assert rows(far) == expected(range(5), range(2))


def test_a_listing_that_misses_a_merge_is_made_again(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first listing has half of the old files and none of the new."""
    write_flushes(run_dir, range(4))
    listings = [run_dir.storage.names("events")[:2]]
    compact(run_dir)
    original = LocalStorage.names

    def names(self: LocalStorage, folder: str = "") -> list[str]:
        return listings.pop() if listings else original(self, folder)

    monkeypatch.setattr(LocalStorage, "names", names)
    assert run_dir.part_names("events") == ["events/generation=1/part-000000.parquet"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"generation": "1"}',
        '{"generation": 1, "files": {"events": ["../../x.parquet"]}}',
        '{"generation": 1, "files": {"events": ["tensors/generation=1/part-000000.parquet"]}}',
        '{"generation": 1, "files": {"e": ["e/rank=0/part-000000.parquet", "e/rank=0/part-000000.parquet"]}}',
        '{"generation": 1, "through": {"events": {"x": 1}}}',
        '{"generation": 1, "through": {"events": {"0": "1"}}}',
    ],
)
def test_a_current_that_is_none_is_refused(run_dir: RunDir, text: str) -> None:
    (run_dir.folder / "CURRENT").write_text(text)
    with pytest.raises(Fp8DebugError, match="CURRENT cannot be used"):
        read_generation(run_dir.storage)


def test_what_is_a_part() -> None:
    assert is_part("events/generation=3/part-000012.parquet")
    assert is_part("events/rank=3/part-000012-000013.parquet")
    assert not is_part("events/generation=3/.part-000012.parquet.tmp1-2")
    assert not is_part("a/events/generation=3/part-000012.parquet")
