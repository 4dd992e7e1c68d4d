"""What a capture may take: memory of the queue, bytes on the disk, and what goes when there is no more."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from fp8debug.config import BadValue, parse_size
from fp8debug.errors import UsageError
from fp8debug.hooks import encoding, flushing, writer
from fp8debug.hooks.budget import Budget
from fp8debug.hooks.byte_queue import ByteQueue
from fp8debug.hooks.schedule import Schedule, parse_steps
from fp8debug.hooks.tables import Batch
from fp8debug.hooks.used_bytes import UsedBytes
from fp8debug.storage import storage_of

if TYPE_CHECKING:
    from tests.hooks.conftest import Attach, Recorded


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("500", 500), ("4k", 4096), ("1.5M", 3 << 19), ("20G", 20 << 30), ("2 TB", 2 << 40), (7, 7)]
)
def test_sizes(text: str | int, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "G", "1X", "1 GiB", True, 1.5])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(BadValue, match="500M or 20G"):
        parse_size(text)


def test_the_api_refuses_what_it_does_not_know(attach: Attach) -> None:
    with pytest.raises(UsageError, match="on_full: got 'wait'; expected block or drop"):
        attach(nn.Linear(2, 2), on_full="wait")
    with pytest.raises(UsageError, match="max_bytes: got 'much'"):
        attach(nn.Linear(2, 2), max_bytes="much")


def values(n_bytes: int) -> Batch:
    batch = Batch()
    batch.rows["values"].array_bytes = n_bytes
    return batch


def test_the_queue_holds_bytes_not_batches() -> None:
    queue = ByteQueue(100_000)
    assert queue.put(values(60_000), 0) and not queue.put(values(60_000), 0.01)
    assert queue.put(values(30_000), 0), "a smaller one still goes in"
    assert not queue.has_room(20_000) and queue.has_room(20_000, spare=20_000)
    queue.get()
    assert not queue.put(values(60_000), 0.01), "what is being written is memory too"
    queue.done()
    assert queue.put(values(60_000), 0)
    alone = ByteQueue(100)
    assert alone.put(values(60_000), 0), "a batch larger than the queue goes alone"


def test_a_slow_disk_costs_details_first_and_says_which(
    attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, original = threading.Event(), encoding.write_part

    def stuck(*args: Any) -> None:
        gate.wait()
        original(*args)

    monkeypatch.setattr(writer, "write_part", stuck)
    monkeypatch.setattr(writer, "QUEUE_BYTES", 200_000)
    monkeypatch.setattr(flushing, "SPARE_BYTES", 80_000)
    monkeypatch.setattr(flushing, "flush_interval_s", lambda elapsed_s: -1.0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = attach(model, on_full="drop", raw_every=1, quiet=False, detail="none")
    began = time.monotonic()
    for _ in range(24):
        model(torch.randn(16, 8)).sum().backward()
        optimizer.step()
    assert time.monotonic() - began < 20, "nobody waits"
    threading.Timer(0.2, gate.set).start()
    summary = session.close()
    assert not summary.is_complete
    problems = summary.problems

    rows = recorded.rows("tensors")
    whole = {row["step"] for row in rows if row["sampled"]}
    thin = {row["step"] for row in rows} - whole
    gone = set(range(24)) - whole - thin
    assert whole and thin and gone
    assert {row["step"]: row["sampled"] for row in recorded.rows("steps")} == {
        step: step in whole for step in whole | thin
    }
    assert {row["step"] for row in recorded.rows("errors")} == {row["step"] for row in recorded.rows("values")} == whole
    assert {row["step"] for row in recorded.rows("scales")} == whole | thin
    said = [row["message"] for row in recorded.rows("events", kind="dropped")]
    assert sum(int(text.split()[0]) for text in said if "details dropped" in text) == 3 * len(thin | gone)
    assert sum(int(text.split()[0]) for text in said if "dropped whole" in text) == 3 * len(gone)
    assert len(problems) == 2 and all("--on-full drop" in text for text in problems)
    assert capsys.readouterr().err.count("the disk is slower than the training") == 1
    assert recorded.manifest["status"] == "closed"


def size(run: Path) -> int:
    return sum(part.stat().st_size for part in run.rglob("*.parquet") if "events" not in part.parts)


def test_a_budget_thins_what_is_sampled_and_is_never_passed(
    attach: Attach, recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flushing, "flush_interval_s", lambda elapsed_s: -1.0)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    budget = 700_000
    session = attach(model, max_bytes=budget, detail="none", quiet=False)
    for _ in range(40):
        model(torch.randn(32, 8)).sum().backward()
        optimizer.step()
        deadline = time.monotonic() + 10
        while session._writer._queue._held and time.monotonic() < deadline:  # so that the disk is never behind
            time.sleep(0.001)
        assert size(recorded.path) <= budget
    summary = session.close()
    assert not summary.is_complete
    problems = summary.problems
    assert size(recorded.path) <= budget
    told = recorded.rows("events", kind="thinned")
    words = ("1 of 2", "1 of 4", "1 of 8", "alone", "left out")
    assert [word for row in told for word in words if word in row["message"]] == list(words)
    sampled = [row["step"] for row in recorded.rows("steps") if row["sampled"]]
    second, fourth, eighth, none, _ = (row["step"] for row in told)
    expected = [s for s in range(40) if (s <= second or s % 2 == 0) and (s <= fourth or s % 4 == 0)]
    expected = [s for s in expected if (s <= eighth or s % 8 == 0) and s <= none]
    assert sampled == [s for s in expected if s <= max(sampled)]
    assert len(problems) == 1 and problems[0].startswith("--max-bytes was used up")
    assert capsys.readouterr().err.count("--max-bytes") == len(told)


def test_merging_makes_room_but_does_not_turn_back(tmp_path: Path) -> None:
    used = UsedBytes(storage_of(tmp_path), 0, 1000)
    kept: list[int] = []
    told: list[tuple[str, str]] = []
    budget = Budget(used, 4, thin=kept.append, note=lambda *event: told.append(event), say=lambda line: None)
    for used.n_bytes in (100, 499, 500, 510, 900, 300, 760, 960):
        budget.look()
    assert kept == [2, 8, 0]
    assert [kind for kind, _ in told] == ["thinned"] * 3
    assert "50% of 1000 bytes (what each of 4 ranks has of --max-bytes) used" in told[0][1]
    assert budget.problems == [
        "--max-bytes: 96% of 1000 bytes (what each of 4 ranks has of --max-bytes) used; health and scales are recorded "
        "alone"
    ]


def test_a_thinned_schedule() -> None:
    def sampled(schedule: Schedule) -> list[int]:
        return [step for step in range(60) if schedule.sampled(step)]

    assert sampled(Schedule(5, 3, None, 0, keep=2)) == [0, 2, 10, 20, 30, 40, 50]
    assert sampled(Schedule(5, 0, None, 0, keep=0)) == []
    assert sampled(Schedule(5, 0, parse_steps("7-12,40"), 0, keep=4)) == [7, 11, 40]
    assert [step for step in range(9) if Schedule(5, 0, None, 2, keep=2).raw(step)] == [0, 4, 8]
    assert not Schedule(5, 0, None, 2, keep=0).raw(0)


BIG = """
import sys, torch
from torch import nn
import fp8debug
from fp8debug.hooks import observation, writer

torch.set_num_threads(1)
observation.MAX_BUFFERED_BYTES, writer.QUEUE_BYTES = 2 << 20, 8 << 20

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10

model = nn.Linear(1024, 8, bias=False, dtype=torch.bfloat16)
x = torch.zeros(2, 16384, 1024, dtype=torch.bfloat16).transpose(0, 1)
small = torch.zeros(4, 1024, dtype=torch.bfloat16)
with fp8debug.attach(model, run_dir="run", every=1, raw_every=1, tensors=["x", "w"], quiet=True) as session:
    model(small).sum().backward()
    session.step()
    model(x).sum().backward()  # sampled and raw: the first time pays for what torch makes once
    before = peak()
    del session
raw = x.numel() * 4
print((peak() - before) >> 20, raw >> 20)
"""


def test_the_memory_of_a_capture_does_not_grow_with_the_tensor(warm_python: Any, tmp_path: Path) -> None:
    script = tmp_path / "big.py"
    script.write_text(BIG)
    ran = warm_python.run(tmp_path, str(script))
    assert ran.returncode == 0, ran.stderr
    grown_mb, raw_mb = map(int, ran.stdout.split())
    assert raw_mb == 128
    assert grown_mb < 64
