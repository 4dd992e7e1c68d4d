"""Recipes with one scale a tensor that are not simply a cast with a scale from the amax."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug.formats import E4M3, E5M2
from fp8debug.metrics import RankedHistogram, sqnr_db
from fp8debug.recipes import BF16, BFLOAT16, CurrentScaling, RangeExpansion, Static, TensorRecipe, scaled_cast

Float32Array = npt.NDArray[np.float32]


def f32(values: object) -> Float32Array:
    return np.array(values, dtype=np.float32)


def test_a_plain_recipe_rounds_with_its_scale() -> None:
    x = f32([1.0, -3.0, 0.1, 448.0, 500.0])
    for recipe in (CurrentScaling(), Static(value=0.5), CurrentScaling(fp8_format="E5M2", power_of_two=True)):
        assert recipe.is_plain
        q, beyond = recipe.round(x, 448.0, 0.1, E4M3)
        expected, expected_beyond = scaled_cast(x, recipe.scale(448.0, E4M3), E4M3)
        assert (q.tobytes(), beyond.tolist()) == (expected.tobytes(), expected_beyond.tolist())


def test_a_scaled_cast_is_undone() -> None:
    q, beyond = scaled_cast(f32([1.0, 1.03125, 250.0, -np.inf]), np.float32(2), E4M3)
    assert q.tolist() == [1.0, 1.0, 224.0, -224.0]  # 2.0625 lies between 2 and 2.25
    assert beyond.tolist() == [False, False, True, True]


def test_a_static_scale_stays_what_it_is() -> None:
    recipe = Static(value=64.0, set_at_step=10)
    assert [recipe.scale(amax, E4M3) for amax in (0.0, 1.0, math.inf, math.nan)] == [64.0] * 4
    assert recipe.text == "static:scale=64.0,set_at_step=10"
    assert isinstance(recipe.scale(1.0, E4M3), np.float32)


def test_bf16_is_the_cast_to_bf16() -> None:
    recipe = BF16()
    assert recipe.formats_for("dy") == ((BFLOAT16, False),)
    assert not recipe.is_plain
    assert recipe.scale(3.0, BFLOAT16) == 1
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)
    x[:4] = [np.inf, -np.inf, 0.0, -0.0]
    ties = (rng.integers(0, 1 << 16, 4000, dtype=np.uint32) << np.uint32(16) | np.uint32(0x8000)).view(np.float32)
    x = np.concatenate([x, ties, f32([3.4e38, 3.39e38])])
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    q, beyond = recipe.round(x, 1.0, 1.0, BFLOAT16)
    np.testing.assert_array_equal(q, expected)
    np.testing.assert_array_equal(beyond, np.isinf(expected))
    assert (BFLOAT16.max, BFLOAT16.min_normal) == ((2 - 2.0**-7) * 2.0**127, 2.0**-126)


def test_the_exponent_stretches_the_tensors_range_to_the_formats() -> None:
    """COAT: k = log_R(range of E4M3), R = amax / amin; 448 * 2^9 = 229376 for E4M3."""
    recipe = RangeExpansion()
    assert recipe.exponent(16.0, 1.0, E4M3) == pytest.approx(math.log(229376, 16))
    assert recipe.exponent(3.0, 1.0, E5M2) == pytest.approx(math.log(57344 * 2**16, 3))
    assert recipe.exponent(1e9, 1.0, E4M3) == 1  # wider than the format: nothing to stretch
    for amax, amin in ((1.0, 1.0), (0.0, 0.0), (math.inf, 1.0), (math.nan, 1.0)):
        assert recipe.exponent(amax, amin, E4M3) == 1
    assert RangeExpansion(k=2.5).exponent(16.0, 1.0, E4M3) == 2.5


def test_expansion_by_1_is_current_scaling() -> None:
    x = f32(np.random.default_rng(0).standard_normal(4096))
    amax, amin = float(np.abs(x).max()), float(np.abs(x).min())
    q, beyond = RangeExpansion(k=1.0).round(x, amax, amin, E4M3)
    expected, _ = CurrentScaling().round(x, amax, amin, E4M3)
    # The scale is not rounded to float32 first: hardly ever another neighbour.
    assert np.isclose(q, expected, rtol=1e-6).mean() > 0.999
    assert not beyond.any()


def test_expansion_is_the_formula() -> None:
    x = f32([1.0, -1.5, 2.0, -0.0, 0.0])
    q, beyond = RangeExpansion(k=2.0).round(x, 2.0, 1.0, E4M3)
    # squares over 4, times 448: 112, 252 (between 240 and 256, nearer to 256), 448
    expected = [math.sqrt(112 / 448) * 2, -math.sqrt(256 / 448) * 2, 2.0, 0.0, 0.0]
    np.testing.assert_allclose(q, expected, rtol=1e-7)
    assert np.signbit(q).tolist() == [False, True, False, True, False]
    assert not beyond.any()
    _, beyond = RangeExpansion(k=2.0).round(f32([2.5]), 2.0, 1.0, E4M3)  # an amax that is too small
    assert beyond.all()


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_expansion_divides_the_error_by_its_exponent(sigma: float) -> None:
    """The root divides relative errors by k, which is 1 once the tensor is as wide as the format."""
    x = f32(np.random.default_rng(1).lognormal(0, sigma, 50_000))
    amax, amin = float(x.max()), float(x.min())
    ranked = RankedHistogram(x, np.ones(x.size, np.int64))

    def error_db(recipe: TensorRecipe) -> float:
        db = sqnr_db(ranked.sums_of(*recipe.round(ranked.values, amax, amin, E4M3)))
        assert db is not None
        return -db

    k = max(1, math.log(448 * 2**9) / math.log(amax / amin))
    assert error_db(CurrentScaling()) - error_db(RangeExpansion()) == pytest.approx(20 * math.log10(k), abs=0.2)


@settings(deadline=None)
@given(
    amax=st.floats(2.0**-149, float(np.finfo(np.float32).max), width=32),
    ratio=st.floats(1, 2.0**40),
    k=st.one_of(st.just(0.0), st.floats(1, 300)),
)
def test_expansion_never_leaves_the_range(amax: float, ratio: float, k: float) -> None:
    x = f32([amax, amax / ratio, -amax, 0.0])
    q, beyond = RangeExpansion(k=k).round(x, amax, float(x[1]) or amax, E4M3)
    assert q[[0, 2, 3]].tolist() == [amax, -amax, 0.0]
    assert 0 <= q[1] <= amax
    assert not beyond.any()


@pytest.mark.parametrize("amax", [0.0, math.inf, math.nan])
def test_expansion_without_a_usable_amax_is_a_cast(amax: float) -> None:
    q, _ = RangeExpansion().round(f32([0.0, 1.03, 500.0]), amax, amax, E4M3)
    assert q.tolist() == [0.0, 1.0, 448.0]
