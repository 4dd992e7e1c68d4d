"""Frames of a view: types come out as they went in, and a frame outlives the run that it came from."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from fp8debug.analysis import open_run
from fp8debug.errors import UsageError

if TYPE_CHECKING:  # half a second of every process that collects this file
    import pandas as pd
    import polars as pl

LARGEST = 2**64 - 1
QUERY = (
    "select seq, checksum, shape, status, approx, sampled, amax, "
    "case when seq = 0 then 'nan'::double end as broken, "
    "to_timestamp(1700000000.25 + seq) as started, n_zero::int as zeros, "
    "dtype::enum ('bfloat16', 'float32') as kind from tensors order by seq"
)


@pytest.fixture(scope="module")
def frames(synthetic_run: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[pd.DataFrame, pl.DataFrame, pa.Table]:
    """The query's rows in three libraries, after the run was closed."""
    run = synthetic_run.SyntheticRun(tmp_path_factory.mktemp("frames") / "run")
    run.add("fc", "x", np.ones((2, 3), dtype=np.float32), step=0, checksum=LARGEST)
    run.add("fc", "w", np.zeros((1,), dtype=np.float32), step=0, zeros_counted=False)
    run.write()
    with open_run(run.path, threads=1) as opened:
        relation = opened.sql(QUERY)
        made = relation.df(), relation.pl(), relation.to_arrow_table()
        errors = opened.table("tensor_errors")
        assert len(errors.df()) == len(errors.pl()) == errors.to_arrow_table().num_rows == 2
        with pytest.raises(UsageError, match="there is no view 'tensor_error'; nearest names: tensor_errors, "):
            opened.table("tensor_error")
        assert errors.arrow().read_all().num_rows == 2, "a reader: it needs the open run"
    return made


def test_pandas(frames: tuple[pd.DataFrame, pl.DataFrame, pa.Table]) -> None:
    import pandas as pd

    frame = frames[0]
    assert int(frame["checksum"][0]) == LARGEST and pd.isna(frame["checksum"][1]), "no float in between"
    assert [list(shape) for shape in frame["shape"]] == [[2, 3], [1]]
    assert frame["started"][1] == pd.Timestamp("2023-11-14T22:13:21.25Z")
    assert frame["zeros"].tolist()[0] == 0 and pd.isna(frame["zeros"][1]) and frame["approx"].isna().all()
    assert frame["broken"].isna().all() and frame["sampled"].tolist() == [True, True]
    assert frame["kind"].tolist() == ["bfloat16"] * 2 and frame["kind"].dtype == "category"
    assert frame["amax"].dtype == np.float32


def test_polars(frames: tuple[pd.DataFrame, pl.DataFrame, pa.Table]) -> None:
    import polars as pl

    frame = frames[1]
    assert frame["checksum"].to_list() == [LARGEST, None] and frame.schema["checksum"] == pl.UInt64
    assert frame["shape"].to_list() == [[2, 3], [1]] and frame.schema["shape"] == pl.List(pl.Int64)
    moment = datetime.datetime(2023, 11, 14, 22, 13, 21, 250_000, tzinfo=datetime.UTC)
    assert frame["started"][1] == moment
    assert frame["zeros"].to_list() == [0, None] and frame["approx"].to_list() == [None, None]
    assert np.isnan(frame["broken"][0]) and frame["broken"][1] is None, "NaN and NULL stay apart"
    assert frame["kind"].to_list() == ["bfloat16"] * 2
    assert frame.schema["amax"] == pl.Float32 and frame.schema["sampled"] == pl.Boolean


def test_arrow(frames: tuple[pd.DataFrame, pl.DataFrame, pa.Table]) -> None:
    table = frames[2]
    assert table.schema.field("checksum").type == pa.uint64() and table["checksum"].to_pylist() == [LARGEST, None]
    assert table["shape"].to_pylist() == [[2, 3], [1]] and table.schema.field("amax").type == pa.float32()
    assert table["broken"].null_count == 1 and np.isnan(table["broken"][0].as_py())
    assert pa.types.is_timestamp(table.schema.field("started").type)
    assert pa.types.is_dictionary(table.schema.field("kind").type)
