"""The SQL macros against ml_dtypes and the published vectors, bit by bit."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import duckdb
import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

DATA = Path(__file__).resolve().parent.parent / "data"
ORACLES = {"E4M3": (ml_dtypes.float8_e4m3fn, 448.0), "E5M2": (ml_dtypes.float8_e5m2, 57344.0)}
FMTS = sorted(ORACLES)


def oracle(x: npt.NDArray[np.float32], fmt: str) -> npt.NDArray[np.float32]:
    """x after a saturating cast by ml_dtypes."""
    dtype, top = ORACLES[fmt]
    with np.errstate(invalid="ignore"):
        return np.clip(x, -top, top).astype(dtype).astype(np.float32)


def in_sql(con: duckdb.DuckDBPyConnection, expression: str, x: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    con.register("given", pa.table({"i": np.arange(x.size), "x": x}))
    return con.execute(f"select {expression} as y from given order by i").fetchnumpy()["y"]


def assert_same(got: npt.NDArray[Any], expected: npt.NDArray[np.float32]) -> None:
    got = np.ma.filled(got, np.nan)
    assert got.dtype == np.float32
    different = ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
    assert not different.any(), f"{different.sum()} differ"


def every_bfloat16() -> npt.NDArray[np.float32]:
    return (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)


@pytest.mark.parametrize("fmt", FMTS)
def test_every_bfloat16_pattern_is_cast_as_by_ml_dtypes(con: duckdb.DuckDBPyConnection, fmt: str) -> None:
    x = every_bfloat16()
    assert_same(in_sql(con, f"{fmt.lower()}(x)", x), oracle(x, fmt))
    assert_same(in_sql(con, f"quantize(x, '{fmt}')", x), oracle(x, fmt))


@pytest.mark.parametrize("fmt", FMTS)
def test_every_significand_is_rounded_as_by_ml_dtypes(con: duckdb.DuckDBPyConnection, fmt: str) -> None:
    # All 2^23 significands would take seconds: every midpoint has its low bits zero, so its neighbours suffice.
    midpoints = (np.arange(1 << 8, dtype=np.uint32) << np.uint32(15)) | np.uint32(0x3F800000)
    near = (midpoints[:, None] + np.arange(-3, 4)[None, :]).astype(np.uint32).ravel().view(np.float32)
    binades = np.float32(2.0) ** np.arange(-20, 17, dtype=np.float32)
    x = (near[:, None] * binades[None, :]).ravel()
    assert_same(in_sql(con, f"quantize(x, '{fmt}')", x), oracle(x, fmt))


@pytest.mark.parametrize("fmt", FMTS)
def test_random_float32_are_scaled_and_cast_in_float(con: duckdb.DuckDBPyConnection, fmt: str) -> None:
    rng = np.random.default_rng(7)
    x = rng.integers(0, 1 << 32, 4096, dtype=np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    scale = np.float32(3.7e4)
    with np.errstate(over="ignore", under="ignore"):
        expected = oracle(x * scale, fmt) * (np.float32(1) / scale)
    assert_same(in_sql(con, f"fake_quantize(x, 3.7e4, '{fmt}')", x), expected)


def test_published_midpoints(con: duckdb.DuckDBPyConnection) -> None:
    with (DATA / "scalar_cast_midpoints.csv").open() as file:
        rows = list(csv.DictReader(file))
    for fmt in FMTS:
        mine = [row for row in rows if row["fmt"].upper() == fmt]
        assert mine
        x = np.array([int(row["x_u32"], 16) for row in mine], np.uint32).view(np.float32)
        codes = np.array([int(row["code_saturating"], 16) for row in mine], np.uint8)
        assert_same(in_sql(con, f"quantize(x, '{fmt}')", x), codes.view(ORACLES[fmt][0]).astype(np.float32))


@pytest.mark.parametrize("fmt", FMTS)
def test_overflow_is_what_an_unsaturated_cast_cannot_hold(con: duckdb.DuckDBPyConnection, fmt: str) -> None:
    x = every_bfloat16()
    with np.errstate(invalid="ignore"):
        unsaturated = x.astype(ORACLES[fmt][0]).astype(np.float32)
    expected = ~np.isfinite(unsaturated) & ~np.isnan(x)
    got = in_sql(con, f"overflows(x, '{fmt}')", x)
    assert (got == expected).all()


def test_current_scale_is_the_kernels(con: duckdb.DuckDBPyConnection) -> None:
    vectors = json.loads((DATA / "current_scaling.json").read_text())["vectors"]
    plain = [v for v in vectors if not v["pow2"]]
    assert len(plain) > 50
    for fmt in FMTS:
        mine = [v for v in plain if v["fmt"].upper() == fmt]
        amax = np.array([int(v["amax_u32"], 16) for v in mine], np.uint32).view(np.float32)
        expected = np.array([int(v["te_kernel_scale_u32"], 16) for v in mine], np.uint32).view(np.float32)
        assert_same(in_sql(con, f"current_scale(x, '{fmt}')", amax), expected)


def test_an_unknown_format_gives_null(con: duckdb.DuckDBPyConnection) -> None:
    query = "select quantize(1, 'E3M4'), fmt_max('E3M4'), current_scale(1, 'E3M4'), overflows(1e9, 'E3M4')"
    assert con.execute(query).fetchall() == [(None, None, None, None)]
