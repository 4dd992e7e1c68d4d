"""Error sums of both engines against the numpy core and against a direct float64 computation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug import metrics
from fp8debug.formats import E4M3, E5M2, Format
from fp8debug.hooks.measure import Engine, load_engine
from fp8debug.metrics import ErrorSums

ENGINES = {name: load_engine(name) for name in ("numba", "torch")}
SCALES = (1.0, 100.0, 3.7e-3, 2.0**60, 2.0**-60, float(np.finfo(np.float32).max), 2.0**-127, 1.7e-41)
REQUESTS = [(np.float32(scale), fmt) for scale in SCALES for fmt in (E4M3, E5M2)]


@pytest.fixture(params=["numba", "torch"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn."""
    return ENGINES[request.param]


def floats(numbers: Sequence[float | np.float32]) -> npt.NDArray[np.float32]:
    """FP32 vector of these numbers."""
    return np.array(numbers, np.float32)


def assert_same(got: ErrorSums, expected: ErrorSums, rtol: float = 1e-12, *, leave_out: tuple[str, ...] = ()) -> None:
    """Integers equal, sums close."""
    for field in dataclasses.fields(ErrorSums):
        a, b = getattr(got, field.name), getattr(expected, field.name)
        if field.name in leave_out:
            continue
        if isinstance(b, int):
            assert a == b and isinstance(a, int), field.name
        else:
            np.testing.assert_allclose(a, b, rtol=rtol, err_msg=field.name)


def has_inverse(scale: np.float32) -> bool:
    """Whether 1 / scale is a finite FP32 number."""
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.float32(1) / scale))


def direct(x: npt.NDArray[np.float32], scale: np.float32, fmt: Format) -> ErrorSums:
    """Element by element with the cast of ml_dtypes; the low sums from a sort of the elements."""
    x = x[np.isfinite(x)]
    twin = {E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}[fmt]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = x * scale
        q = np.clip(scaled, -fmt.max, fmt.max).astype(twin).astype(np.float32) * (np.float32(1) / scale)
        x64, q64 = x.astype(np.float64), q.astype(np.float64)
        error = (x64 - q64) ** 2
    beyond = np.abs(scaled) >= 61440 if fmt is E5M2 else np.abs(scaled) > 464
    order = np.argsort(np.where(x == 0, np.inf, np.abs(x)), kind="stable")
    low = order[: int(np.sum(x != 0)) * 99 // 100]
    return ErrorSums(
        n=x.size,
        n_nonzero=int(np.sum(x != 0)),
        n_underflow=int(np.sum((x != 0) & (q == 0))),
        n_overflow=int(np.sum(beyond)),
        sum_x2=float(np.sum(x64 * x64)),
        sum_q2=float(np.sum(q64 * q64)),
        sum_xq=float(np.sum(x64 * q64)),
        sum_err2=float(np.sum(error)),
        n_low=low.size,
        low_sum_x2=float(np.sum(x64[low] ** 2)),
        low_sum_err2=float(np.sum(error[low])),
    )


@settings(max_examples=60, deadline=None)
@given(
    log_sigma=st.floats(0, 12),
    n=st.integers(0, 3000),
    seed=st.integers(0, 2**32 - 1),
    one_sided=st.booleans(),
    request=st.sampled_from(REQUESTS),
    engine_name=st.sampled_from(("numba", "torch")),
)
def test_histogram_sums_equal_the_core_and_the_elements(
    log_sigma: float, n: int, seed: int, one_sided: bool, request: tuple[np.float32, Format], engine_name: str
) -> None:
    engine = ENGINES[engine_name]
    rng = np.random.default_rng(seed)
    magnitude = np.clip(np.exp(log_sigma * rng.standard_normal(n)), 1e-35, 1e35) * (rng.random(n) < 0.9)
    sign = 1.0 if one_sided else rng.choice([-1.0, 1.0], n)
    t = torch.from_numpy(np.asarray(magnitude * sign)).to(torch.bfloat16)
    counted = engine.count(t, torch.bfloat16)
    (got,) = engine.error_sums(counted.values, counted.counts, [request])
    assert_same(got, metrics.error_sums(counted.values, counted.counts, *request))
    if has_inverse(request[0]):
        assert_same(got, direct(t.float().numpy(), *request))


def test_many_requests_are_answered_in_order(engine: Engine) -> None:
    counted = engine.count(torch.linspace(-3, 500, 2000).to(torch.float16), torch.float16)
    got = engine.error_sums(counted.values, counted.counts, REQUESTS)
    assert len(got) == len(REQUESTS)
    for sums, request in zip(got, REQUESTS, strict=True):
        assert_same(sums, metrics.error_sums(counted.values, counted.counts, *request))
    assert engine.error_sums(counted.values, counted.counts, []) == []


@pytest.mark.parametrize("fmt, at, beyond", [(E4M3, 464.0, False), (E5M2, 61440.0, True)], ids=["E4M3", "E5M2"])
def test_overflow_begins_where_rounding_leaves_the_format(engine: Engine, fmt: Format, at: float, beyond: bool) -> None:
    edge = np.float32(at)
    around = np.nextafter(edge, np.float32(0)), edge, np.nextafter(edge, np.float32(1e9))
    for value, overflows in zip(around, (False, beyond, True), strict=True):
        for sign in (1, -1):
            (sums,) = engine.error_sums(floats([sign * value]), np.array([5]), [(np.float32(1), fmt)])
            assert sums.n_overflow == 5 * overflows


def test_underflow_begins_below_half_the_smallest_subnormal(engine: Engine) -> None:
    half = np.float32(E4M3.min_subnormal / 2)  # the tie goes to zero
    values = floats([half, np.nextafter(half, np.float32(1))])
    (sums,) = engine.error_sums(values, np.array([3, 4]), [(np.float32(1), E4M3)])
    assert (sums.n_underflow, sums.n_nonzero) == (3, 7)


def test_the_low_sums_take_a_part_of_the_bin_they_end_in(engine: Engine) -> None:
    values, counts = floats([1, 3.1, 500, -1, -3.1]), np.array([100, 900, 10, 50, 940])
    (sums,) = engine.error_sums(values, counts, [(np.float32(1), E4M3)])
    x, q = np.float32(3.1).astype(np.float64), 3.0
    assert sums.n_low == 1980
    np.testing.assert_allclose(sums.low_sum_err2, 1830 * (x - q) ** 2, rtol=1e-13)
    np.testing.assert_allclose(sums.low_sum_x2, 150 + 1830 * x * x, rtol=1e-13)


def test_a_histogram_in_another_order_gives_the_same_sums(engine: Engine) -> None:
    values = floats([-2.7, 300, 0.001, 0.0, -0.0, 17, -1e-5])
    counts = np.array([5, 1, 7, 100, 3, 2, 9])
    for request in REQUESTS[:4]:
        (sums,) = engine.error_sums(values, counts, [request])
        assert sums.n == 127
        assert_same(sums, metrics.error_sums(values, counts, *request))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fp32_elements_are_summed_as_they_are(engine: Engine, dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(3)
    t = torch.exp(3 * torch.randn(70_001, generator=g)) * (torch.rand(70_001, generator=g) - 0.5).sign()
    t[::7] = 0
    t[1], t[2], t[3], t[4] = torch.nan, torch.inf, -torch.inf, 1e-41
    t = t.to(dtype)
    low = ("n_low", "low_sum_x2", "low_sum_err2")
    counted = engine.count(t, torch.float32)
    got = engine.tensor_error_sums(t, REQUESTS, counted)
    for sums, again in zip(got, engine.tensor_error_sums(t, REQUESTS), strict=True):
        assert_same(sums, again, rtol=0)
    distinct, counts = np.unique(t.float().numpy(), return_counts=True)
    from_histogram = engine.error_sums(counted.values, counted.counts, REQUESTS)
    for sums, request, rounded in zip(got, REQUESTS, from_histogram, strict=True):
        assert_same(sums, metrics.error_sums(distinct, counts, *request), leave_out=low)
        if has_inverse(request[0]):
            assert_same(sums, direct(t.float().numpy(), *request), leave_out=low)
        np.testing.assert_array_equal([getattr(sums, n) for n in low], [getattr(rounded, n) for n in low])


def test_the_sums_of_a_transposed_or_empty_tensor(engine: Engine) -> None:
    matrix = torch.arange(12.0).reshape(3, 4) / 7
    (straight,) = engine.tensor_error_sums(matrix, REQUESTS[:1])
    (turned,) = engine.tensor_error_sums(matrix.t(), REQUESTS[:1])
    assert_same(turned, straight)
    assert engine.tensor_error_sums(torch.empty(0, 4), REQUESTS[:1]) == [ErrorSums()]
