"""The same metrics three ways: from stored sums, from histograms in SQL, and directly on the tensor in float64."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp8debug.analysis import open_run

Float32Array = npt.NDArray[np.float32]

METRICS = ("mse", "sqnr_db", "rel_l2", "cosine", "gain", "underflow", "overflow", "exact")
ORACLES = {"E4M3": (ml_dtypes.float8_e4m3fn, 448.0), "E5M2": (ml_dtypes.float8_e5m2, 57344.0)}


def directly(x: Float32Array, scale: np.float32, fmt: str) -> dict[str, Any]:
    """Metrics of one tensor, element by element in float64, the cast by ml_dtypes."""
    dtype, top = ORACLES[fmt]
    x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        scaled = x * scale
        q32 = np.clip(scaled, -top, top).astype(dtype).astype(np.float32) * (np.float32(1) / scale)
        clipped = ~np.isfinite(scaled.astype(dtype).astype(np.float32))
        wide, q = x.astype(np.float64), q32.astype(np.float64)
        err2 = (wide - q) ** 2
        order = np.argsort(np.abs(wide[wide != 0]), kind="stable")
        low = order[: math.floor(order.size * 99 // 100)]
        x2, q2, xq, e2 = (float(v.sum()) for v in (wide * wide, q * q, wide * q, err2))
        low_x2 = float((wide[wide != 0][low] ** 2).sum())
        low_e2 = float(err2[wide != 0][low].sum())
    relative = ratio(e2, x2)
    n_nonzero = int((x != 0).sum())
    return {
        "mse": ratio(e2, x.size),
        "sqnr_db": decibel(x2, e2),
        "sqnr_low_db": decibel(low_x2, low_e2),
        "rel_l2": None if relative is None else math.sqrt(relative),
        "cosine": ratio(xq, math.sqrt(x2 * q2)),
        "gain": ratio(xq, x2),
        "underflow": ratio(int(((x != 0) & (q32 == 0)).sum()), n_nonzero),
        "overflow": ratio(int(clipped.sum()), x.size),
        "exact": e2 == 0,
    }


def ratio(part: float, whole: float) -> float | None:
    value = part / whole if whole != 0 else math.nan
    return value if math.isfinite(value) else None


def decibel(signal: float, noise: float) -> float | None:
    value = ratio(signal, noise)
    return 10 * math.log10(value) if value else None


def same(a: Any, b: Any) -> bool:
    if a is None or b is None or isinstance(a, bool):
        return a is b
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9 if abs(a) < 1e-3 and a == 0 else 1e-300) or (
        abs(a - b) < 1e-8  # decibels near 0: the quotient is what has 1e-9
    )


def as_dtype(x: npt.NDArray[Any], dtype: str) -> Float32Array:
    with np.errstate(all="ignore"):
        if dtype == "float32":
            return x.astype(np.float32)
        narrow = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
        return x.astype(np.float32).astype(narrow).astype(np.float32)


SHAPES: dict[str, Callable[[np.random.Generator, int], npt.NDArray[Any]]] = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "log-normal": lambda rng, n: np.exp(3 * rng.standard_normal(n)) * rng.choice([-1, 1], n),
    "heavy-tailed": lambda rng, n: rng.standard_t(1.1, n),
    "constant": lambda rng, n: np.full(n, rng.standard_normal()),
    "sparse": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.03),
    "subnormal": lambda rng, n: rng.integers(-3000, 3000, n) * 2.0**-149,
    "all zero": lambda rng, n: np.where(rng.random(n) < 0.5, 0.0, -0.0),
    "signed zeros": lambda rng, n: np.where(rng.random(n) < 0.7, rng.choice([0.0, -0.0], n), rng.standard_normal(n)),
    "non-finite": lambda rng, n: np.where(
        rng.random(n) < 0.2, rng.choice([np.nan, np.inf, -np.inf], n), rng.standard_normal(n)
    ),
    "NaN": lambda rng, n: np.where(rng.random(n) < 0.2, np.nan, rng.standard_normal(n)),
    "any bits": lambda rng, n: rng.integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32),
}


@st.composite
def tensors(draw: st.DrawFn) -> Float32Array:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
    n = draw(st.sampled_from([1, 2, 99, 100, 101, 700]))
    unit = 10.0 ** draw(st.integers(-12, 12))
    with np.errstate(all="ignore"):
        return as_dtype(shape(rng, n) * (unit if draw(st.booleans()) else 1.0), draw(st.sampled_from(DTYPES)))


DTYPES = ("bfloat16", "float16", "float32")


@pytest.fixture(scope="module")
def folder() -> Any:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@given(
    st.lists(tensors(), min_size=4, max_size=12),
    st.sampled_from(["E4M3", "E5M2"]),
    st.floats(2.0**-126, 2.0**60, width=32) | st.sampled_from([1.0, 2.0**127]),
)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_sums_histograms_and_the_tensor_agree(
    synthetic_run: ModuleType, folder: Path, batch: list[Float32Array], fmt: str, scale: float
) -> None:
    path = Path(tempfile.mkdtemp(dir=folder))
    written = synthetic_run.SyntheticRun(path)
    forced = synthetic_run.ForcedScale(scale, recipe="static")
    for step, x in enumerate(batch):
        written.add("layer", "x", x, step=step, fmt=fmt, scales=(forced,))
    written.write()
    names = ", ".join(METRICS)
    with open_run(path, threads=1) as run:
        from_sums = run.sql(f"select seq, recipe, scale, sqnr_low_db, {names} from tensor_errors").fetchall()
        from_histograms = {
            ("static", row[0]): row[1:]
            for row in run.sql(f"select seq, {names} from whatif('{fmt}', scale_of := {scale!r})").fetchall()
        }
        for row in run.sql(f"select seq, {names} from whatif_current('{fmt}')").fetchall():
            from_histograms["current", row[0]] = row[1:]
    assert len(from_sums) == 2 * len(batch)
    for seq, recipe, used, sqnr_low_db, *stored in from_sums:
        x = batch[seq]
        expected = directly(x, np.float32(used), fmt)
        assert same(sqnr_low_db, expected["sqnr_low_db"])
        assert all(map(same, stored, [expected[name] for name in METRICS])), (recipe, stored, expected)
        counted = from_histograms.get((recipe, seq))
        if (x[np.isfinite(x)] != 0).any():
            assert counted is not None
            assert all(map(same, counted, stored)), (recipe, counted, stored)
        else:
            assert counted is None, "a record without a non-zero value has no row in a what-if"
