"""Error sums over a histogram against a direct float64 computation on the expanded tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug import metrics
from fp8debug.formats import E4M3, E5M2, Format
from fp8debug.metrics import ErrorSums, RankedHistogram, error_sums, low_order
from fp8debug.recipes import CurrentScaling, scaled_cast

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
ORACLE = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}


def f32(values: Sequence[float]) -> Float32Array:
    return np.array(values, dtype=np.float32)


def i64(values: Sequence[int]) -> Int64Array:
    return np.array(values, dtype=np.int64)


def direct(tensor: Float32Array, scale: np.float32, fmt: Format) -> ErrorSums:
    """The definitions, element by element, with ml_dtypes as the cast and exact summation."""
    x32 = tensor[np.isfinite(tensor)]
    with np.errstate(all="ignore"):
        scaled = x32 * scale
        q32 = np.clip(scaled, -fmt.max, fmt.max).astype(ORACLE[fmt.name]).astype(np.float32) * (np.float32(1) / scale)
        beyond = ~np.isfinite(scaled.astype(ORACLE[fmt.name]).astype(np.float32))
    x, q = x32.astype(np.float64), q32.astype(np.float64)
    nonzero = x[x != 0]
    small = np.argsort(np.abs(nonzero), kind="stable")[: nonzero.size * 99 // 100]
    error = (x - q)[x != 0]
    return ErrorSums(
        n=x.size,
        n_nonzero=nonzero.size,
        n_underflow=int(np.sum((x != 0) & (q == 0))),
        n_overflow=int(beyond.sum()),
        sum_x2=math.fsum(x * x),
        sum_q2=math.fsum(q * q),
        sum_xq=math.fsum(x * q),
        sum_err2=math.fsum((x - q) ** 2),
        n_low=small.size,
        low_sum_x2=math.fsum(nonzero[small] ** 2),
        low_sum_err2=math.fsum(error[small] ** 2),
    )


def histogram(tensor: Float32Array) -> tuple[Float32Array, Int64Array]:
    """Distinct values by bit pattern, so that -0 stands apart from +0."""
    bits, counts = np.unique(tensor.view(np.uint32), return_counts=True)
    return bits.view(np.float32), counts.astype(np.int64)


def assert_same(got: ErrorSums, expected: ErrorSums) -> None:
    for name, value in asdict(expected).items():
        if name.startswith("n"):
            assert getattr(got, name) == value, name
        else:
            assert getattr(got, name) == pytest.approx(value, rel=1e-9, abs=0), name


@st.composite
def tensors(draw: st.DrawFn) -> Float32Array:
    """Normal, log-normal, heavy-tailed, constant, sparse, subnormal and special values, of three dtypes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(0, 700))
    makers: dict[str, Callable[[], npt.NDArray[Any]]] = {
        "normal": lambda: rng.standard_normal(size),
        "lognormal": lambda: rng.lognormal(0, 4, size) * rng.choice([-1, 1], size),
        "heavy": lambda: rng.standard_t(1, size),
        "constant": lambda: np.full(size, rng.standard_normal()),
        "sparse": lambda: rng.standard_normal(size) * (rng.random(size) < 0.05),
        "subnormal": lambda: rng.integers(-500, 500, size) * 2.0**-149,
        "bits": lambda: rng.integers(0, 1 << 32, size, dtype=np.uint32).view(np.float32),
    }
    with np.errstate(all="ignore"):
        tensor = (
            makers[draw(st.sampled_from(sorted(makers)))]()
            .astype(draw(st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16])))
            .astype(np.float32)
        )
    special = draw(st.sampled_from([(), (0.0, -0.0), (np.nan, np.inf, -np.inf, -0.0)]))
    mixed = np.concatenate([tensor, f32(special)]).astype(np.float32)
    rng.shuffle(mixed)
    return mixed


@st.composite
def scales(draw: st.DrawFn, tensor: Float32Array, fmt: Format) -> np.float32:
    finite = np.abs(tensor[np.isfinite(tensor)])
    current = CurrentScaling().scale(float(finite.max(initial=0)), fmt)
    return current * np.float32(2.0 ** draw(st.integers(-6, 6))) if current < 2.0**100 else current


@settings(deadline=None)  # a busy machine is no failure
@given(data=st.data(), fmt=st.sampled_from([E4M3, E5M2]))
def test_sums_over_the_histogram_are_those_of_the_tensor(data: st.DataObject, fmt: Format) -> None:
    tensor = data.draw(tensors())
    scale = data.draw(scales(tensor, fmt))
    values, counts = histogram(tensor)
    expected = direct(tensor, scale, fmt)
    assert_same(error_sums(values, counts, scale, fmt), expected)
    shuffled = np.random.default_rng(0).permutation(values.size)
    values, counts = values[shuffled], counts[shuffled]
    assert_same(error_sums(values, counts, scale, fmt, low_order(values)), expected)


@settings(deadline=None)  # a busy machine is no failure
@given(data=st.data())
def test_one_ranked_histogram_serves_several_scales(data: st.DataObject) -> None:
    tensor = data.draw(tensors())
    ranked = RankedHistogram(*histogram(tensor))
    for fmt in (E4M3, E5M2, E4M3):
        scale = data.draw(scales(tensor, fmt))
        assert_same(ranked.error_sums(scale, fmt), direct(tensor, scale, fmt))


def test_sums_of_what_a_caller_quantised_in_its_own_way() -> None:
    """Rounding to integers, where everything from 100 on counts as beyond."""
    tensor = (np.random.default_rng(5).standard_normal(500) * 60).astype(np.float32)
    ranked = RankedHistogram(*histogram(np.concatenate([tensor, f32([0.0, np.nan])])))
    assert np.array_equal(ranked.values, tensor[low_order(tensor)])
    sums = ranked.sums_of(np.rint(ranked.values), np.abs(ranked.values) > 100)
    x, q = tensor.astype(np.float64), np.rint(tensor).astype(np.float64)
    assert (sums.n, sums.n_nonzero, sums.n_low) == (501, 500, 495)
    assert (sums.n_underflow, sums.n_overflow) == (int((q == 0).sum()), int((np.abs(x) > 100).sum()))
    assert sums.sum_xq == pytest.approx(math.fsum(x * q))
    assert sums.sum_err2 == pytest.approx(math.fsum((x - q) ** 2))
    scale = np.float32(2)
    assert ranked.sums_of(*scaled_cast(ranked.values, scale, E4M3)) == ranked.error_sums(scale, E4M3)


def test_low_part_takes_as_many_of_the_straddling_bin_as_remain() -> None:
    values, counts = f32([-8, 1.0625, 0, 3]), i64([3, 150, 1000, 47])
    sums = error_sums(values, counts, np.float32(1), E4M3)
    assert (sums.n, sums.n_nonzero, sums.n_low) == (1200, 200, 198)
    assert sums.low_sum_x2 == 150 * 1.0625**2 + 47 * 9 + 1 * 64
    assert sums.low_sum_err2 == sums.sum_err2 == 150 * 0.0625**2


def test_low_order_ranks_the_finite_non_zero_values_by_magnitude() -> None:
    values = f32([3, -1, 0, -0.0, np.nan, np.inf, -np.inf, 2, -5])
    assert values[low_order(values)].tolist() == [-1, 2, 3, -5]


@pytest.mark.parametrize("n", [0, 1, 99, 100, 101, 700, 10**6, 2**40])
def test_number_of_low_values_is_the_exact_floor(n: int) -> None:
    assert metrics.n_low_of(n) == math.floor(99 * n / 100)


def test_counts_of_a_known_histogram() -> None:
    values = f32([464, 465, -500, np.inf, np.nan, 2.0**-10, 2.0**-9, 0.0, -0.0, 1.0])
    counts = i64([1, 2, 3, 10, 20, 4, 5, 6, 7, 8])
    sums = error_sums(values, counts, np.float32(1), E4M3)
    assert (sums.n, sums.n_nonzero, sums.n_overflow, sums.n_underflow) == (36, 23, 5, 4)
    assert metrics.overflow(sums) == 5 / 36
    assert metrics.underflow(sums) == 4 / 23
    assert metrics.underflow_all(sums) == 4 / 36


def test_ratios_follow_their_definitions() -> None:
    sums = ErrorSums(n=10, n_nonzero=8, sum_x2=400.0, sum_q2=100.0, sum_xq=200.0, sum_err2=4.0)
    sums.low_sum_x2, sums.low_sum_err2 = 50.0, 5.0
    assert metrics.mse(sums) == 0.4
    assert metrics.sqnr_db(sums) == pytest.approx(20)
    assert metrics.low_sqnr_db(sums) == pytest.approx(10)
    assert metrics.rel_l2(sums) == pytest.approx(0.1)
    assert metrics.cosine(sums) == 1
    assert metrics.gain(sums) == 0.5
    assert not metrics.exact(sums)


RATIOS = (
    metrics.mse,
    metrics.sqnr_db,
    metrics.low_sqnr_db,
    metrics.rel_l2,
    metrics.cosine,
    metrics.gain,
    metrics.underflow,
    metrics.underflow_all,
    metrics.overflow,
)


def ratios(sums: ErrorSums) -> dict[str, float | None]:
    return {ratio.__name__: ratio(sums) for ratio in RATIOS}


def test_nothing_is_defined_without_elements() -> None:
    empty = error_sums(f32([]), i64([]), np.float32(1), E4M3)
    assert empty == ErrorSums()
    only_nan = error_sums(f32([np.nan, np.inf]), i64([3, 4]), np.float32(1), E4M3)
    assert only_nan == ErrorSums()
    assert set(ratios(empty).values()) == {None}


def test_all_zero_tensor_has_no_error_and_no_direction() -> None:
    sums = error_sums(f32([0.0, -0.0]), i64([3, 4]), np.float32(1), E4M3)
    assert metrics.exact(sums)
    defined = {name: value for name, value in ratios(sums).items() if value is not None}
    assert defined == {"mse": 0, "underflow_all": 0, "overflow": 0}


def test_exact_tensor_has_no_sqnr_and_perfect_ratios() -> None:
    sums = error_sums(f32([1.0, -0.5, 448.0]), i64([100, 100, 100]), np.float32(1), E4M3)
    assert metrics.exact(sums)
    assert ratios(sums) == {
        "mse": 0,
        "sqnr_db": None,
        "low_sqnr_db": None,
        "rel_l2": 0,
        "cosine": 1,
        "gain": 1,
        "underflow": 0,
        "underflow_all": 0,
        "overflow": 0,
    }


def test_everything_underflows_under_a_scale_far_too_small() -> None:
    sums = error_sums(f32([1.0, -2.0]), i64([1, 1]), np.float32(2.0**-20), E4M3)
    assert metrics.underflow(sums) == 1
    assert metrics.sqnr_db(sums) == 0
    assert metrics.rel_l2(sums) == 1
    assert metrics.gain(sums) == 0
    assert metrics.cosine(sums) is None


def test_an_infinite_inverse_scale_gives_no_ratio_instead_of_nan() -> None:
    sums = error_sums(f32([1e38, -2e38]), i64([1, 1]), np.float32(2.0**-130), E4M3)
    assert ratios(sums)["sqnr_db"] is None
    assert all(value is None or math.isfinite(value) for value in ratios(sums).values())


def test_gain_names_a_wrong_inverse_scale_that_cosine_is_blind_to() -> None:
    x = np.random.default_rng(3).standard_normal(4096).astype(np.float32)
    values, counts = histogram(x)
    right = error_sums(values, counts, np.float32(64), E4M3)
    wrong = ErrorSums(**asdict(right) | {"sum_q2": right.sum_q2 * 16, "sum_xq": right.sum_xq * 4})
    assert metrics.cosine(wrong) == pytest.approx(metrics.cosine(right))
    assert metrics.gain(wrong) == pytest.approx(4, rel=1e-2)
