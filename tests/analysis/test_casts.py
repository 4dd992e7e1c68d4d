"""The SQL macros, value by value: against the numpy codecs, ml_dtypes with gfloat, and the published vectors."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from fp8debug import formats
from fp8debug.formats import ELEMENT_FORMATS, FORMATS, Format

DATA = Path(__file__).resolve().parent.parent / "data"
ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
ELEMENTS = pytest.mark.parametrize("fmt", ELEMENT_FORMATS.values(), ids=list(ELEMENT_FORMATS))


def oracle(oracles: ModuleType, x: npt.NDArray[np.float32], fmt: Format) -> npt.NDArray[np.float32]:
    """x after a saturating cast on which ml_dtypes and gfloat agree; NaN stays NaN."""
    codes, agreed = oracles.agreed_codes(x, fmt, True)
    assert agreed.all()
    values: npt.NDArray[np.float32] = codes.view(oracles.ML_DTYPES[fmt.name]).astype(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), values)


def in_sql(con: duckdb.DuckDBPyConnection, expression: str, x: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    con.register("given", pa.table({"i": np.arange(x.size), "x": x}))
    return con.execute(f"select {expression} as y from given order by i").fetchnumpy()["y"]


def assert_same(got: npt.NDArray[Any], expected: npt.NDArray[np.float32]) -> None:
    got = np.ma.filled(got, np.nan)
    assert got.dtype == np.float32
    different = ~((got == expected) | (np.isnan(got) & np.isnan(expected)))
    assert not different.any(), f"{different.sum()} differ"


@ELEMENTS
def test_every_bf16_pattern_is_cast_as_by_ml_dtypes_and_gfloat(
    con: duckdb.DuckDBPyConnection, cast_oracles: ModuleType, fmt: Format
) -> None:
    x = cast_oracles.every_bf16()
    assert_same(in_sql(con, f"{fmt.name.lower()}(x)", x), oracle(cast_oracles, x, fmt))
    assert_same(in_sql(con, f"quantize(x, '{fmt.name}')", x), oracle(cast_oracles, x, fmt))


@ALL
def test_values_are_those_of_the_numpy_codec(
    con: duckdb.DuckDBPyConnection, cast_oracles: ModuleType, fmt: Format
) -> None:
    found = (cast_oracles.every_bf16(), cast_oracles.every_fp16(), cast_oracles.random_fp32(1 << 16))
    for x in (*found, cast_oracles.around_values(fmt)):
        assert_same(in_sql(con, f"{fmt.name.lower()}(x)", x), formats.fake_quantize(x, fmt))
        assert_same(in_sql(con, f"quantize(x, '{fmt.name}')", x), formats.fake_quantize(x, fmt))
        assert (in_sql(con, f"overflows(x, '{fmt.name}')", x) == formats.overflows(x, fmt)).all()


@ELEMENTS
def test_random_float32_are_scaled_and_cast_in_float(
    con: duckdb.DuckDBPyConnection, cast_oracles: ModuleType, fmt: Format
) -> None:
    x = cast_oracles.random_fp32(4096)
    x = x[np.isfinite(x)]
    scale = np.float32(3.7e4)
    with np.errstate(over="ignore", under="ignore"):
        expected = oracle(cast_oracles, x * scale, fmt) * (np.float32(1) / scale)
    assert_same(in_sql(con, f"fake_quantize(x, 3.7e4, '{fmt.name}')", x), expected)


def test_published_midpoints(con: duckdb.DuckDBPyConnection, cast_oracles: ModuleType) -> None:
    with (DATA / "scalar_cast_midpoints.csv").open() as file:
        rows = list(csv.DictReader(file))
    for fmt in ("E4M3", "E5M2"):
        mine = [row for row in rows if row["fmt"].upper() == fmt]
        assert mine
        x = np.array([int(row["x_u32"], 16) for row in mine], np.uint32).view(np.float32)
        codes = np.array([int(row["code_saturating"], 16) for row in mine], np.uint8)
        assert_same(in_sql(con, f"quantize(x, '{fmt}')", x), codes.view(cast_oracles.ML_DTYPES[fmt]).astype(np.float32))


@pytest.mark.parametrize("name", ["E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ"])
def test_overflow_is_what_an_unsaturated_cast_cannot_hold(
    con: duckdb.DuckDBPyConnection, cast_oracles: ModuleType, name: str
) -> None:
    x = cast_oracles.every_bf16()
    with np.errstate(invalid="ignore"):
        unsaturated = x.astype(cast_oracles.ML_DTYPES[name]).astype(np.float32)
    expected = ~np.isfinite(unsaturated) & ~np.isnan(x)
    assert (in_sql(con, f"overflows(x, '{name}')", x) == expected).all()


def test_current_scale_is_the_kernels(con: duckdb.DuckDBPyConnection) -> None:
    vectors = json.loads((DATA / "current_scaling.json").read_text())["vectors"]
    plain = [v for v in vectors if not v["pow2"]]
    assert len(plain) > 50
    for fmt in ("E4M3", "E5M2"):
        mine = [v for v in plain if v["fmt"].upper() == fmt]
        amax = np.array([int(v["amax_u32"], 16) for v in mine], np.uint32).view(np.float32)
        expected = np.array([int(v["te_kernel_scale_u32"], 16) for v in mine], np.uint32).view(np.float32)
        assert_same(in_sql(con, f"current_scale(x, '{fmt}')", amax), expected)


@ALL
def test_fmt_max_is_the_formats(con: duckdb.DuckDBPyConnection, fmt: Format) -> None:
    assert con.execute(f"select fmt_max('{fmt.name}'), typeof(fmt_max('{fmt.name}'))").fetchall() == [
        (fmt.max, "FLOAT")
    ]


def test_the_format_may_be_a_column(con: duckdb.DuckDBPyConnection) -> None:
    names = ", ".join(f"('{name}')" for name in FORMATS)
    rows = con.execute(f"select fmt, quantize(5.3, fmt), fmt_max(fmt) from (values {names}) as t (fmt)").fetchall()
    expected = [5.5, 5.0, 5.5, 5.0, 5.0, 5.5, 6.0, 4.0]
    assert rows == [(n, v, fmt.max) for (n, fmt), v in zip(FORMATS.items(), expected, strict=True)]


def test_an_unknown_format_gives_null(con: duckdb.DuckDBPyConnection) -> None:
    query = "select quantize(1, 'E3M4'), fmt_max('E3M4'), current_scale(1, 'E3M4'), overflows(1e9, 'E3M4')"
    assert con.execute(query).fetchall() == [(None, None, None, None)]
    assert con.execute("select quantize(null, 'E4M3'), quantize(null, 'E8M0')").fetchall() == [(None, None)]
