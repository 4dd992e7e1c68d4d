"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fp8debug.analysis import Run
from fp8debug.analysis.export import Narrowing, write_tensorboard
from fp8debug.errors import UsageError


def test_read_back(known: Run, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "board"
    folder.mkdir()
    (folder / "events.out.tfevents.1.of-the-trainer").write_bytes(b"")
    written = write_tensorboard(known, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["events.out.tfevents.1.of-the-trainer", written.name]
    events = EventAccumulator(str(written))
    events.Reload()
    (first, second) = events.Scalars("loss")
    assert (first.wall_time, first.step, first.value) == (1_700_000_000.25, 0, 2.5)
    assert second.step == 7 and second.value != second.value
    assert [(e.step, e.value) for e in events.Scalars("scale_gap_bits/fc/x/delayed")] == [(0, 1.0), (7, 2.0)]
    (octaves,) = events.Histograms("log2_magnitude/fc/x")
    assert octaves.wall_time == 1_700_000_000.25
    found = octaves.histogram_value
    filled = [limit for limit, n in zip(found.bucket_limit, found.bucket, strict=True) if n]
    assert filled == [-11, 1, 9], "each bucket ends at the exponent of the next octave"
    assert (found.num, found.min, found.max) == (3, -12, 9)
    assert len(events.Tags()["scalars"]) == 3 + 2 * 5 + 1


def test_an_earlier_export_is_kept_or_replaced(known: Run, tmp_path: Path) -> None:
    first = write_tensorboard(known, tmp_path)
    before = first.read_bytes()
    with pytest.raises(UsageError, match="holds an earlier export"):
        write_tensorboard(known, tmp_path, Narrowing(layer="^fc$"))
    assert first.read_bytes() == before
    second = write_tensorboard(known, tmp_path, Narrowing(layer="^fc$"), force=True)
    assert list(tmp_path.glob("events*")) == [second] and len(second.read_bytes()) < len(before)


def test_nothing_is_left_of_a_failed_export(known: Run, tmp_path: Path) -> None:
    folder = tmp_path / "board"
    with pytest.raises(UsageError, match="was not recorded"):
        write_tensorboard(known, folder, Narrowing(tensors=("w",)))
    assert not folder.exists()


def test_without_the_package(known: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(UsageError, match=r"pip install 'fp8debug\[tensorboard\]'"):
        write_tensorboard(known, tmp_path / "board")
