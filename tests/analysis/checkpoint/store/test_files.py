"""Bytes of files: by threads, in large pieces, with few files open, and of files that change."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fp8debug.analysis.checkpoint.store import files
from fp8debug.analysis.checkpoint.store.files import ByteFiles, stamp_of
from fp8debug.errors import Fp8DebugError


def test_threads_get_the_bytes_they_asked_for(tmp_path: Path) -> None:
    content = {tmp_path / f"{number}": np.random.default_rng(number).bytes(5000) for number in range(4)}
    for path, data in content.items():
        path.write_bytes(data)
    random = np.random.default_rng(9)
    asked = [(list(content)[i % 4], *sorted(random.integers(0, 5001, 2).tolist())) for i in range(400)]
    reader = ByteFiles()
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda one: reader.read(*one).tobytes(), asked))
    reader.close()
    assert got == [content[path][first:last] for path, first, last in asked]


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_IDLE", 3)
    for number in range(10):
        (tmp_path / str(number)).write_bytes(bytes([number]))
    reader = ByteFiles()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        assert [int(reader.read(tmp_path / str(number), 0, 1)[0]) for number in range(10)] == list(range(10))
    assert len(os.listdir("/proc/self/fd")) == before + 3
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert reader.read(tmp_path / "7", 0, 1).tolist() == [7]  # opens it again
    reader.close()


def test_what_the_system_gives_in_pieces_is_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    whole = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, parts, at: whole(file, [parts[0][:7]], at))
    reader = ByteFiles()
    assert reader.read(tmp_path / "a", 3, 98).tobytes() == bytes(range(3, 98))
    reader.close()


def test_a_file_that_changes_ends_or_goes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(100))
    with path.open("rb") as opened:
        reader = ByteFiles({path: stamp_of(opened.fileno())})
    with pytest.raises(Fp8DebugError, match=r"ends at byte 100, and a tensor in it should go on to 120"):
        reader.read(path, 90, 120)
    path.write_bytes(bytes(101))
    with pytest.raises(Fp8DebugError, match="has changed since its header was read"):
        reader.read(path, 0, 10)
    reader.close()
    path.unlink()
    with pytest.raises(Fp8DebugError, match=f"cannot read {path}: No such file"):
        reader.read(path, 0, 10)
