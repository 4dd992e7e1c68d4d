"""Parts on disk: schema, meanings, names, renaming, when they are flushed, and the lock."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from fp8debug import schema
from fp8debug.errors import Fp8DebugError
from fp8debug.formats import E4M3
from fp8debug.hooks import encoding, writer
from fp8debug.hooks.flushing import flush_interval_s
from fp8debug.hooks.observed import Observed, Payload
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.writer import PartWriter
from fp8debug.replay import Moment
from fp8debug.rundir import RunDir

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded

ARROW = {
    **{word: word for word in ("bool", "int32", "int64", "uint64", "string")},
    **{"float32": "float", "float64": "double"},
    **{"list<int32>": "list<item: int32>", "list<int64>": "list<item: int64>"},
    **{"list<float32>": "list<item: float>", "list<float64>": "list<item: double>"},
}


def event(number: int) -> tuple[Any, ...]:
    return (0, number, 0, 1.5, "assumption", None, None, f"event {number}")


def batch_of(*numbers: int) -> Batch:
    batch = Batch()
    for number in numbers:
        batch.rows["events"].append(event(number))
    return batch


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    (tmp_path / "run").mkdir()
    return RunDir(tmp_path / "run")


def test_every_table_is_what_the_schema_says(attach: Attach, recorded: Recorded) -> None:
    """Columns, their types, their order, and in the file itself what they mean."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, dtype=torch.float32))
    unused = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recipes = ["current", "delayed", "mxfp8"]
    with attach(nn.ModuleDict({"a": model, "b": unused}), raw_every=1, recipes=recipes) as session:
        model(torch.randn(2, 3)).sum().backward()
        w = torch.ones(3, 3)
        payload = Payload(w.to(torch.float8_e4m3fn), E4M3, 1.0, "current")
        session._observation.observe(Observed("a.0", "w", w, w.dtype, Moment(0, 0, 0, "forward"), payload=payload))
        session.log(eval={"task": 0.5})
        optimizer.step()
    captured = {name: table for name, table in schema.TABLES.items() if name != "statistics"}  # imported alone
    for name, table in captured.items():
        (part,) = recorded.parts(name)
        found = pq.read_schema(part)
        assert found.names == [column.name for column in table.columns]
        assert [str(field.type).replace("element", "item") for field in found] == [ARROW[c.type] for c in table.columns]
        for field, column in zip(found, table.columns, strict=True):
            assert field.metadata[b"meaning"].decode() == column.meaning
            assert field.metadata[b"unit"].decode() == column.unit
        assert found.metadata[b"fp8debug.table"].decode() == name
        assert int(found.metadata[b"fp8debug.schema_version"]) == schema.SCHEMA_VERSION
        compressions = {
            pq.ParquetFile(part).metadata.row_group(0).column(i).compression for i in range(len(table.columns))
        }
        assert compressions == {"ZSTD"}


def test_parts_are_numbered_and_read_back(run_dir: RunDir) -> None:
    parts = PartWriter(run_dir, rank=3)
    parts.start()
    for numbers in ((0, 1), (2,), ()):
        parts.submit(batch_of(*numbers))
    parts.close()
    assert parts.error is None
    names = sorted(p.relative_to(run_dir.path).as_posix() for p in run_dir.folder.rglob("*") if p.is_file())
    assert names == [
        ".readers",
        "events/rank=3/part-000000.parquet",
        "events/rank=3/part-000001.parquet",
        "rank=3.lock",
    ]
    assert [pq.ParquetFile(p).read()["message"].to_pylist() for p in run_dir.parts("events")] == [
        ["event 0", "event 1"],
        ["event 2"],
    ]


def test_a_part_has_its_name_only_when_it_is_whole(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    replace = os.replace

    def look(source: Path, target: Path) -> None:
        seen.append((pq.ParquetFile(source).read().num_rows, target.name, run_dir.parts("events")))
        assert source.parent == target.parent, "a rename is atomic within one directory alone"
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    PartWriter(run_dir, 0).write(batch_of(1, 2, 3))
    assert seen == [(3, "part-000000.parquet", [])]
    assert [p.name for p in run_dir.parts("events")] == ["part-000000.parquet"]


def test_half_a_part_is_neither_left_nor_counted(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the writing fails or is cut off by death."""

    def half(table: pa.Table, file: IO[bytes], **_: object) -> None:
        file.write(b"PAR1")
        raise OSError("no space")

    folder = run_dir.table_folder("events", 0)
    with monkeypatch.context() as patch:
        patch.setattr(pq, "write_table", half)
        with pytest.raises(OSError, match="no space"):
            PartWriter(run_dir, 0).write(batch_of(1))
    assert list(folder.iterdir()) == []
    (folder / ".part-000000.parquet.tmp77").write_bytes(b"PAR1")
    assert run_dir.parts("events") == []


def test_the_lock_is_held_while_the_writer_lives(run_dir: RunDir) -> None:
    first, second = PartWriter(run_dir, 0), PartWriter(run_dir, 0)
    first.start()
    with pytest.raises(Fp8DebugError, match="being written by another process"):
        second.start()
    other_rank = PartWriter(run_dir, 1)
    other_rank.start()
    other_rank.close()
    first.close()
    with run_dir.lock_path(0).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_file_system_without_locks(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    parts = PartWriter(run_dir, 0)
    parts.start()
    parts.submit(batch_of(1))
    parts.close()
    assert len(run_dir.parts("events")) == 1


def test_after_an_error_nothing_blocks(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much is submitted: the training must not wait for a writer that is no more."""
    monkeypatch.setattr(writer, "write_part", lambda *_: 1 / 0)
    parts = PartWriter(run_dir, 0)
    parts.start()
    began = time.monotonic()
    for number in range(300):
        parts.submit(batch_of(number))
    parts.close()
    assert time.monotonic() - began < 5
    assert isinstance(parts.error, ZeroDivisionError)


def test_a_slow_disk_makes_the_training_wait_not_the_memory_grow(
    run_dir: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    original = encoding.write_part

    def slow(*args: Any) -> None:
        gate.wait()
        original(*args)

    monkeypatch.setattr(writer, "write_part", slow)
    monkeypatch.setattr(writer, "QUEUE_BYTES", 4 * (1 << 14))  # the least that four batches count as
    monkeypatch.setattr(writer, "PATIENCE_S", 0.1)
    told: list[str] = []
    parts = PartWriter(run_dir, 0)
    parts.tell = told.append
    parts.start()
    submitted: list[int] = []

    def submit() -> None:
        for number in range(20):
            parts.submit(batch_of(number))
            submitted.append(number)

    training = threading.Thread(target=submit)
    training.start()
    training.join(0.6)
    assert len(submitted) <= 4
    assert [text for text in told if "waits for it" in text] == told and len(told) == 1
    gate.set()
    training.join()
    while len(run_dir.parts("events")) < 20:
        time.sleep(0.001)
    gate.clear()
    threading.Timer(0.3, gate.set).start()
    parts.submit(batch_of(20))
    parts.close()
    assert told[1:] == ["the training has ended; what was recorded is still being written"]
    assert len(run_dir.parts("events")) == 21, "and nothing is lost"


def test_flush_interval() -> None:
    """A twentieth of the run so far, between a second and five minutes."""
    assert [flush_interval_s(s) for s in (0, 10, 20, 100, 6000, 10**6)] == [1, 1, 1, 5, 300, 300]


def test_when_steps_are_flushed(attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of the first step that comes more than the interval after the last flush."""
    now, step = 1000.0, 0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    flushed = []
    original = PartWriter.submit

    def submit(self: PartWriter, batch: Batch) -> None:
        flushed.append(step)
        original(self, batch)

    monkeypatch.setattr(PartWriter, "submit", submit)
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with attach(layer, recipes=["current"], every=1000):
        while step < 100:
            now += 0.4
            layer(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            step += 1
    expected, last = [], 0.0
    for number in range(1, 100):  # the forward of a step ends the one before it
        elapsed = 0.4 * (number + 1)
        if elapsed - last > max(1.0, elapsed / 20) + 1e-9:
            expected.append(number)
            last = elapsed
    assert flushed == [*expected, 100]
    assert [row["step"] for row in recorded.rows("steps")] == list(range(100))


def test_flush_by_hand_makes_rows_readable_at_once(attach: Attach, recorded: Recorded) -> None:
    layer = nn.Linear(2, 2)
    with attach(layer) as session:
        layer(torch.ones(1, 2))
        assert not recorded.parts("tensors")
        session.flush()
        deadline = time.monotonic() + 20
        while not recorded.parts("histograms"):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert recorded.keys() == ["0/0/0 forward Linear.x", "0/0/0 forward Linear.w"]
        layer(torch.ones(1, 2))
    assert len(recorded.keys()) == 3


def test_histograms_in_long_form(run_dir: RunDir) -> None:
    """Also of a record without any finite value, and of two kinds in one batch."""
    batch = Batch()
    for seq, counted, values in ((5, "high", [1.0, 2.0]), (6, "high", []), (7, "payload", [-0.0])):
        array = np.array(values, np.float32)
        batch.histograms.append((0, 1, seq, counted), array, np.arange(1, len(array) + 1))
    PartWriter(run_dir, 1).write(batch)
    (part,) = run_dir.parts("histograms")
    rows = [tuple(row.values()) for row in pq.ParquetFile(part).read().to_pylist()]
    assert rows == [(0, 1, 5, "high", 1.0, 1), (0, 1, 5, "high", 2.0, 2), (0, 1, 7, "payload", -0.0, 1)]
    assert np.signbit(np.float32(rows[-1][4]))


def test_rows_that_wait_for_a_device_are_made_by_the_writer(run_dir: RunDir) -> None:
    batch, threads = Batch(), []

    def row() -> tuple[Any, ...]:
        threads.append(threading.current_thread().name)
        return event(9)

    batch.rows["events"].append_deferred(row)
    parts = PartWriter(run_dir, 0)
    parts.start()
    parts.submit(batch)
    parts.close()
    assert threads == ["fp8debug-writer"]
    assert pq.ParquetFile(run_dir.parts("events")[0]).read()["step"].to_pylist() == [9]
