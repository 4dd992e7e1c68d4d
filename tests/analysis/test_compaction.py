"""A run reads the same before, during and after its parts are merged, and what an open run reads stays."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fp8debug.analysis.run import Run, open_run
from fp8debug.generations import READERS_LOCK
from fp8debug.hooks.compaction import compact
from fp8debug.rundir import RunDir
from fp8debug.schema import TABLES
from fp8debug.storage import LocalStorage

SUMS = "select rank, layer, tensor, step, n, sum_x2, sum_err2 from errors order by all"


@pytest.fixture
def path(tmp_path: Path, synthetic_run: ModuleType) -> Path:
    """Two ranks, four parts a table and rank, one record each; somebody may have shared `.readers` before."""
    made = synthetic_run.SyntheticRun(tmp_path / "run", status="closed", world_size=2)
    rng = np.random.default_rng(0)
    for step in range(4):
        for rank in range(2):
            made.add("fc", "x", synthetic_run.as_bfloat16(rng.standard_normal((8, 64))), step=step, rank=rank)
        made.write()
    (tmp_path / "run" / READERS_LOCK).touch()
    return tmp_path / "run"


def content(run: Run) -> dict[str, list[tuple[Any, ...]]]:
    return {table: run.sql(f"from stored.{table} order by all").fetchall() for table in TABLES}


def test_every_table_and_view_is_the_same_after_it(path: Path) -> None:
    with open_run(path) as run:
        tables, sums, presence = content(run), run.sql(SUMS).fetchall(), run.presence
    assert len(tables["tensors"]) == 8
    assert compact(RunDir(path)).n_files == 3
    with open_run(path) as run:
        assert content(run) == tables
        assert run.sql(SUMS).fetchall() == sums
        assert run.presence == presence
        assert not run.problems


def test_an_open_run_keeps_its_files_until_it_is_closed(path: Path) -> None:
    with open_run(path) as run:
        assert compact(RunDir(path)).n_files_left == 24
        with open_run(path) as later:
            assert content(later) == content(run)
    assert compact(RunDir(path)).n_files == 3


def test_parts_that_are_merged_between_listing_and_reading_are_listed_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no lock keeps the files."""
    with open_run(path) as run:
        expected = content(run)
    monkeypatch.setattr(LocalStorage, "share", lambda *_: None)
    original = RunDir.part_names
    stale = {table: original(RunDir(path), table) for table in TABLES}
    compact(RunDir(path))
    monkeypatch.setattr(RunDir, "part_names", lambda self, table: stale.pop(table, None) or original(self, table))
    with open_run(path) as run:
        assert not run.problems
        assert content(run) == expected


def test_a_directory_that_cannot_be_written_is_read_without_a_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path / READERS_LOCK).unlink()
    before = sorted(path.rglob("*"))
    with open_run(path) as run:
        assert len(content(run)["tensors"]) == 8
    assert sorted(path.rglob("*")) == before, "reading makes no file"
