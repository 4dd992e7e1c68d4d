"""Stochastic rounding: unbiased, between the neighbours, nothing to decide for values of the format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.formats import (
    E2M1,
    E4M3,
    E8M0,
    ELEMENT_FORMATS,
    FORMATS,
    Format,
    decode,
    round_by_draw_scalar,
    round_by_draws,
    stochastic_fake_quantize,
)

ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
ELEMENTS = pytest.mark.parametrize("fmt", ELEMENT_FORMATS.values(), ids=list(ELEMENT_FORMATS))


def f32(values: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


@ALL
def test_array_and_scalar_twin_decide_alike(cast_oracles: ModuleType, fmt: Format) -> None:
    x = np.concatenate(
        [cast_oracles.around_values(fmt), cast_oracles.random_fp32(2048), cast_oracles.every_bf16()[::37]]
    )
    draws = np.random.default_rng(3).random(x.size)
    draws[::5] = 0.0
    draws[1::5] = 1 - 2.0**-53
    expected = f32([round_by_draw_scalar(v, fmt, u) for v, u in zip(x.tolist(), draws.tolist(), strict=True)])
    got = round_by_draws(x, fmt, draws)
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(expected[number]))


@ALL
def test_mean_is_the_value_itself(fmt: Format) -> None:
    # In the normal and the subnormal range, at shares where a bias of the rounding would show.
    steps = np.array([0.0, 0.02, 0.3, 0.5, 0.83, 1.0, 1.4, 2.6, 3.07])
    scale = fmt.min_normal if fmt.is_scale else fmt.min_subnormal
    for x64 in (steps[0 if not fmt.is_scale else 5 :] * scale, fmt.max / 2 + steps * fmt.max / 16):
        x = x64.astype(np.float32)
        n = 40_000
        draws = stochastic_fake_quantize(np.repeat(x[:, None], n, axis=1), fmt, np.random.default_rng(11))
        mean, spread = draws.astype(np.float64).mean(axis=1), draws.astype(np.float64).std(axis=1)
        assert (np.abs(mean - x) <= 4.5 * spread / math.sqrt(n)).all()


@ALL
def test_values_of_the_format_stay(fmt: Format) -> None:
    values = decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt)
    values = values[np.isfinite(values)]
    for seed in range(3):
        got = stochastic_fake_quantize(values, fmt, np.random.default_rng(seed))
        np.testing.assert_array_equal(got.view(np.uint32), values.view(np.uint32))
    np.testing.assert_array_equal(round_by_draws(values, fmt, np.zeros(values.size)), values)


@ELEMENTS
def test_results_are_neighbours_and_saturated(cast_oracles: ModuleType, fmt: Format) -> None:
    x = np.concatenate([cast_oracles.random_fp32(1 << 14), cast_oracles.around_values(fmt)])
    x = x[~np.isnan(x)]
    values = np.unique(decode(np.arange(1 << fmt.bits, dtype=np.uint8), fmt))
    values = values[np.isfinite(values)]
    clipped = np.clip(x, values[0], values[-1])
    lower = values[np.searchsorted(values, clipped, side="right") - 1]
    upper = values[np.searchsorted(values, clipped, side="left")]
    rng = np.random.default_rng(5)
    down, up = round_by_draws(x, fmt, np.full(x.size, 1 - 2.0**-53)), round_by_draws(x, fmt, np.zeros(x.size))
    np.testing.assert_array_equal(np.where(x < 0, up, down), lower)  # down is towards zero
    np.testing.assert_array_equal(np.where(x < 0, down, up), upper)
    got = stochastic_fake_quantize(x, fmt, rng)
    assert ((got == lower) | (got == upper)).all()


def test_nan_stays_and_infinity_saturates() -> None:
    x = f32([np.nan, np.inf, -np.inf, 460.0])
    np.testing.assert_array_equal(
        stochastic_fake_quantize(x, E4M3, np.random.default_rng(0)), f32([np.nan, 448, -448, 448])
    )
    scales = f32([np.nan, np.inf, -1.0, 0.0, -0.0, 2.0**-140])
    np.testing.assert_array_equal(
        stochastic_fake_quantize(scales, E8M0, np.random.default_rng(0)),
        f32([np.nan, 2.0**127, np.nan, 2.0**-127, 2.0**-127, 2.0**-127]),
    )


def test_generator_is_the_only_source_of_chance() -> None:
    x = np.linspace(-6, 6, 1000, dtype=np.float32).reshape(10, 100)
    state = np.random.get_state()[1].tolist()  # type: ignore[index]  # a tuple unless asked otherwise
    first, second = (stochastic_fake_quantize(x, E2M1, np.random.default_rng(1)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (first != stochastic_fake_quantize(x, E2M1, np.random.default_rng(2))).any()
    np.testing.assert_array_equal(stochastic_fake_quantize(x.T, E2M1, np.random.default_rng(1)).shape, (100, 10))
    assert np.random.get_state()[1].tolist() == state  # type: ignore[index]


def test_float64_is_refused() -> None:
    with pytest.raises(TypeError, match="expected float32, got float64"):
        stochastic_fake_quantize(np.ones(1), E4M3, np.random.default_rng(0))  # type: ignore[arg-type]
