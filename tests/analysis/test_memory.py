"""A run that does not fit into memory has the same report; what is looked for in a large table is not read past."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

from fp8debug.analysis import open_run
from fp8debug.analysis.memory import parse_size
from fp8debug.analysis.report import Report, build_report
from fp8debug.errors import UsageError


@pytest.fixture(scope="module")
def big_run(repository: Path) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(repository / "benchmarks")
        yield importlib.import_module("big_run")


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("500MB", 500_000_000),
        ("2 GB", 2_000_000_000),
        ("1.5GiB", 3 * 2**29),
        ("40000KB", 40_000_000),
        ("500M", 500_000_000),
    ],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "2", "two GB", "-1GB", "80%", "10MB", "1GB; drop table x"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="memory limit"):
        parse_size(text)


def test_a_report_that_has_to_spill_is_the_same(
    big_run: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spill = tmp_path / "run", tmp_path / "tmp"
    spill.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spill))
    big_run.make_run(path, 60_000, "framework", n_values=8)

    def report(memory_limit: str | None) -> tuple[Report, int]:
        with open_run(path, memory_limit=memory_limit, threads=1) as run:
            built = build_report(run)
            (used,) = run.sql("select coalesce(sum(size), 0) from duckdb_temporary_files()").fetchall()[0]
            return built, used

    whole, used = report(None)
    assert used == 0
    confined, used = report("50MB")
    assert used > 0
    assert confined == whole
    assert [candidate.layer for candidate in whole.candidates] == ["layers.41.mlp"]
    assert not list(spill.iterdir())


def test_histograms_of_one_operand_are_found_by_the_statistics(big_run: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "run"
    big_run.make_run(path, 288 * 31, "simulated", n_values=512)  # 4 sampled steps of 288 tensors
    groups = sum(pq.read_metadata(part).num_row_groups for part in (path / "histograms").rglob("*.parquet"))
    assert groups == 4 * 288 * 512 // (1 << 16)
    with open_run(path, threads=1) as run:
        query = "select sum(count) from histograms where layer = 'layers.3.mlp' and tensor = 'w'"
        plan = run.sql(f"explain analyze {query}").fetchall()[0][1]
        assert run.sql(query).fetchall() == [(4 * 2_097_152,)]
    scanned = [(int(a), int(b)) for a, b in re.findall(r"Row Groups Scanned: (\d+) / (\d+)", plan)]
    assert (4, groups) in scanned
