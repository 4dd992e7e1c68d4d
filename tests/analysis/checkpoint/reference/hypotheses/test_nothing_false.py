"""What must not be named: factors of nothing, other weights, right tensors; and inputs that nobody should crash on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.reference.hypotheses import explain, name_mx_rounding, name_scale_rule
from fp8debug.analysis.checkpoint.reference.pair import Pair

Array = npt.NDArray[Any]
PairOf = Callable[..., Pair]
SHAPE = (128, 200)
NO_CAUSE = {"stale", "other_scales", "other_values", "unexplained", "different_weights"}


def normal(seed: int, shape: tuple[int, int] = SHAPE) -> Array:
    x = np.random.default_rng(seed).standard_normal(shape) * 0.02
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def quantised(x: Array, dtype: Any = ml_dtypes.float8_e4m3fn, largest: float = 448) -> tuple[Array, Array]:
    scale = np.float32(np.abs(x).max() / np.float32(largest))
    return np.clip(x / scale, -largest, largest).astype(dtype).view(np.uint8), np.array([scale])


@pytest.mark.parametrize("moved", [0.0, 0.03], ids=["master", "moved on"])
def test_a_factor_of_no_mistake_is_told_as_one(pair_of: PairOf, moved: float) -> None:
    x = normal(0)
    codes, scale = quantised(x)
    reference = x + np.float32(moved) * normal(1)
    for factor in (0.43, 0.7711, 0.9, 1.0906, 1.3737, 1.9, 2.2, 7.3, 117.7, 3.3e-3, 51234.0):
        found = explain(pair_of(reference, codes, scale * np.float32(factor)))
        assert [one.name for one in found] == ["stale"]
        assert found[0].factor == pytest.approx(factor, rel=2e-3)
        assert found[0].explains > 0.9


@pytest.mark.parametrize(
    ("dtype", "fmt", "largest"),
    [
        (ml_dtypes.float8_e4m3fn, "E4M3", 448),
        (ml_dtypes.float8_e5m2, "E5M2", 57344),
        (ml_dtypes.float4_e2m1fn, "E2M1", 6),
    ],
)
def test_right_tensors_and_those_whose_scale_is_a_little_rounded_have_nothing_to_explain(
    pair_of: PairOf, dtype: Any, fmt: str, largest: float
) -> None:
    x = normal(2)
    codes, scale = quantised(x, dtype, largest)
    for read in (scale, scale * 1.001, scale * (1 - 2**-9)):
        assert explain(pair_of(x, codes, read, fmt=fmt)) == ()


def test_other_weights_are_other_weights_whatever_is_near(pair_of: PairOf) -> None:
    x = normal(3)
    codes, scale = quantised(x)
    (unrelated,) = explain(pair_of(normal(4), codes, scale))
    assert (unrelated.name, unrelated.factor) == ("different_weights", None)
    (tuned,) = explain(pair_of(x + np.float32(0.4) * normal(5), codes, scale))
    assert "cosine 0.93, no factor explains it" in tuned.message
    (a_little,) = explain(pair_of(x + np.float32(0.05) * normal(6), codes, scale))
    assert a_little.name == "other_values" and a_little.factor is None


def test_a_scale_inverted_is_seen_through_a_training_that_went_on(pair_of: PairOf) -> None:
    x = normal(7)
    codes, scale = quantised(x)
    assert explain(pair_of(x + np.float32(0.3) * normal(8), codes, 1 / scale))[0].name == "inverted"


def test_a_reference_that_proves_nothing_explains_nothing(pair_of: PairOf) -> None:
    x = normal(9)
    codes, scale = quantised(x)
    assert explain(pair_of(x * 0, codes, scale)) == ()
    assert explain(pair_of(x * np.nan, codes, scale)) == ()
    assert explain(pair_of(x[:0], codes[:0], scale)) == ()
    assert name_scale_rule(pair_of(x * 0, codes, scale)) is None


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, -1.0, 3e38, 1e-38])
def test_scales_of_any_kind_are_survived(pair_of: PairOf, value: float) -> None:
    x = normal(10)
    codes, _ = quantised(x)
    grid = np.full((4, 4), np.abs(x).max() / 448)
    grid[1, 2] = value
    (found,) = explain(pair_of(x, codes, grid, block=(32, 50)))
    assert found.name == "few_blocks" and found.message.startswith("1 of 16 blocks is off, the others are right")
    assert explain(pair_of(x, codes, np.full((4, 4), value), block=(32, 50)))[0].name in NO_CAUSE | {
        "inverted", "sign", "lost_scales",
    }  # fmt: skip


@pytest.mark.parametrize("code", [0x00, 0x7F, 0x80])
def test_codes_that_hold_nothing(pair_of: PairOf, code: int) -> None:
    x = normal(11)
    (found,) = explain(pair_of(x, np.full(x.shape, code, np.uint8), np.array([0.1])))
    assert found.name == "all_zero"


@pytest.mark.parametrize("n", [1, 2, 7])
def test_tensors_of_few_elements(pair_of: PairOf, n: int) -> None:
    x = normal(12, (1, n))
    codes, scale = quantised(x)
    assert explain(pair_of(x, codes, scale * 1.3))[0].name == "stale"
    assert explain(pair_of(x[0], codes[0], scale * 1.3))[0].name == "stale"
    assert name_mx_rounding(pair_of(x, codes, scale)) is None
