"""C54: rows of millions of values in one Parquet column: asked under a memory limit, and not read otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import fp8debug

if TYPE_CHECKING:
    from tests.field_cases.conftest import Replay

LIMIT = "64MB"


def bytes_read() -> int:
    """What this process has asked the system to read so far."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


@pytest.mark.parametrize(("replay"), [{"raw_every": 1, "recipes": []}], indirect=True)
@pytest.mark.parametrize(("n_rows", "length"), [(4, 500_000), (1, 4_000_000)])
def test_long_rows(replay: Replay, n_rows: int, length: int) -> None:
    value = torch.randint(0, 1009, (n_rows, length), generator=torch.Generator().manual_seed(0)).float()
    replay.observe("x", value.bfloat16())
    replay.session.close()
    n_bytes = sum(part.stat().st_size for part in (replay.path / "values").rglob("*.parquet"))
    with fp8debug.open_run(replay.path, memory_limit=LIMIT, threads=1) as run:
        before = bytes_read()
        known = run.sql("select layer, n, amax from tensors").fetchall()
        rows = run.sql('select count(*), max(row), count(distinct tensor) from "values"').fetchall()
        read = bytes_read() - before
        sums = run.sql('select row, list_sum("values")::double, len("values") from "values" order by row').fetchall()
        ((counted,),) = run.sql(
            'select count(*) from (select unnest("values") as v from "values") where v = 0'
        ).fetchall()
    assert known == [("fc", n_rows * length, 1008.0)]
    assert rows == [(n_rows, n_rows - 1, 1)]
    assert read < n_bytes / 10
    rounded = value.bfloat16().double()
    assert sums == [(row, pytest.approx(float(rounded[row].sum()), rel=1e-6), length) for row in range(n_rows)]
    assert counted == int((value == 0).sum())
