"""Hopper's accumulation, bit for bit against the emulator mmaemu and against sums worked out by hand.

The same cases run over the fast model and over its scalar twin.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mmaemu
import numpy as np
import numpy.typing as npt
import pytest
import torch

from fp8debug.accumulation import PROMOTED_EVERY, descale, hopper, hopper_scalar
from fp8debug.formats import E4M3, E5M2, Float32Array, Format, fake_quantize

Float64Array = npt.NDArray[np.float64]
Model = Callable[[Float32Array, Float32Array, int | None, Format, Format], Float32Array]

TORCH_DTYPES = {"E4M3": torch.float8_e4m3fn, "E5M2": torch.float8_e5m2}
FORMAT_PAIRS = [(E4M3, E4M3), (E4M3, E5M2), (E5M2, E4M3)]


def by_array(a: Float32Array, b: Float32Array, every: int | None, of_a: Format, of_b: Format) -> Float32Array:
    return hopper(a, b, promote_every=every, a_format=of_a, b_format=of_b)


def by_scalar(a: Float32Array, b: Float32Array, every: int | None, of_a: Format, of_b: Format) -> Float32Array:
    rows = [
        [hopper_scalar(x, y, promote_every=every, a_format=of_a, b_format=of_b) for y in b.tolist()] for x in a.tolist()
    ]
    return np.array(rows, dtype=np.float32).reshape(len(a), len(b))


MODELS = pytest.mark.parametrize("model", [by_array, by_scalar], ids=["array", "scalar"])
PROMOTION = pytest.mark.parametrize("every", [None, PROMOTED_EVERY], ids=["fast", "promoted"])
FORMATS_OF = pytest.mark.parametrize("formats", FORMAT_PAIRS, ids=lambda pair: f"{pair[0].name}x{pair[1].name}")


def f32(*rows: list[float]) -> Float32Array:
    return np.array(rows, dtype=np.float32)


def oracle(a: Float32Array, b: Float32Array, every: int | None, of_a: Format, of_b: Format) -> Float32Array:
    left, right = (torch.from_numpy(x).to(TORCH_DTYPES[f.name]) for x, f in ((a, of_a), (b, of_b)))
    found = mmaemu.accumulate(left, right, use_fast_accum=every is None, profile="hopper", splitk=1)
    result: Float32Array = found.numpy()
    return result


def cancelling(rng: np.random.Generator, n: int, k: int) -> Float64Array:
    """Large values, each followed by its negative, with small ones in between: what is left is far below the terms."""
    x = rng.standard_normal((n, k))
    x[:, 1::4] = -x[:, ::4][:, : x[:, 1::4].shape[1]]
    x[:, 2::4] *= 2.0**-7
    return x


KINDS: dict[str, Callable[[np.random.Generator, int, int], Float64Array]] = {
    "normal": lambda rng, n, k: rng.standard_normal((n, k)),
    "positive": lambda rng, n, k: rng.random((n, k)),
    "log-uniform": lambda rng, n, k: rng.choice([-1.0, 1.0], (n, k)) * 2.0 ** rng.uniform(-16, 16, (n, k)),
    "sparse": lambda rng, n, k: rng.standard_normal((n, k)) * (rng.random((n, k)) < 0.02),
    "subnormal": lambda rng, n, k: rng.standard_normal((n, k)) * 2.0 ** rng.choice([-14.0, -8.0, 8.0], (n, k)),
    "cancelling": cancelling,
}


def operand(kind: str, rng: np.random.Generator, n: int, k: int, fmt: Format) -> Float32Array:
    return fake_quantize(KINDS[kind](rng, n, k).astype(np.float32), fmt)


def assert_same_bits(found: Float32Array, expected: Float32Array) -> None:
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


@PROMOTION
@FORMATS_OF
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("model", "n", "depths"),
    [(by_array, 8, (1, 32, 128, 160, 520, 4096)), (by_scalar, 3, (1, 32, 160, 520))],
    ids=["array", "scalar"],
)
def test_equals_mmaemu_to_the_bit(
    model: Model, n: int, depths: tuple[int, ...], kind: str, formats: tuple[Format, Format], every: int | None
) -> None:
    rng = np.random.default_rng(5)
    for k in depths:
        a, b = operand(kind, rng, n, k, formats[0]), operand(kind, rng, n + 1, k, formats[1])
        assert_same_bits(model(a, b, every, *formats), oracle(a, b, every, *formats))


@PROMOTION
def test_equals_mmaemu_on_random_codes_of_every_magnitude(every: int | None) -> None:
    codes = np.random.default_rng(6).integers(0, 256, (2, 24, 1024), dtype=np.uint8)
    a, b = (
        np.nan_to_num(torch.from_numpy(x).view(dtype).float().numpy(), nan=0, posinf=0, neginf=0)
        for x, dtype in zip(codes, (torch.float8_e4m3fn, torch.float8_e5m2), strict=True)
    )
    assert_same_bits(hopper(a, b, promote_every=every, b_format=E5M2), oracle(a, b, every, E4M3, E5M2))


@MODELS
def test_a_term_keeps_thirteen_bits_below_the_largest_exponent(model: Model) -> None:
    a, kept, lost = f32([1, 2**-6]), f32([1, 2**-7]), f32([1, 2**-8])
    for sign in (1, -1):
        one = f32([1, sign])
        assert model(a * one, kept, None, E4M3, E4M3) == 1 + sign * 2**-13
        assert model(a * one, lost, None, E4M3, E4M3) == 1  # towards zero, whatever the sign


@MODELS
def test_fast_loses_to_the_accumulator_what_promotion_keeps(model: Model) -> None:
    a = np.zeros((1, 256), dtype=np.float32)
    a[0, 0], a[0, 128] = 1, 2**-9
    b = np.full((1, 256), 2**-6, dtype=np.float32)
    assert model(a, b, None, E4M3, E4M3) == 2**-6 + 2**-15
    a[0, 0] = 64
    assert model(a, b, None, E4M3, E4M3) == 1
    assert model(a, b, 128, E4M3, E4M3) == 1 + 2**-15


@MODELS
def test_fast_stands_still_once_the_accumulator_is_too_large(model: Model) -> None:
    ones = np.ones((1, (1 << 14) + 96), dtype=np.float32)
    assert model(ones, ones, None, E4M3, E4M3) == 1 << 14  # a one is less than a unit of 2^(14 - 13)
    assert model(ones, ones, 128, E4M3, E4M3) == (1 << 14) + 96


@MODELS
def test_a_subnormal_is_aligned_as_the_lowest_normal_of_its_format(model: Model) -> None:
    a, b = f32([2**-9, 2**-6]), f32([448, 2**-6])
    assert model(a, b, None, E4M3, E4M3) == 0.875  # aligned to 2^(-6 + 8): 2^-12 is less than a unit of 2^-11
    assert model(a, b, None, E5M2, E4M3) == 0.875 + 2**-12  # 2^-9 is normal: aligned to 2^(-9 + 8)


@MODELS
def test_promotion_adds_in_fp32_to_nearest_even(model: Model) -> None:
    a = np.zeros((2, 256), dtype=np.float32)
    b = np.zeros((1, 256), dtype=np.float32)
    a[:, 0], b[0, 0] = 256, 256
    a[:, 1], b[0, 1] = 1, 2  # 2^16 + 2 needs 15 bits: a promoted piece keeps 14, so it comes as 2^16
    a[:, 128], b[0, 128] = 2**-7, 2**-1  # half a unit in the last place of 2^16
    a[1, 129], b[0, 129] = 2**-9, 2**-4
    assert model(a, b, 128, E4M3, E4M3).ravel().tolist() == [2**16, 2**16 + 2**-7]


@MODELS
@PROMOTION
def test_zero_results_are_positive(model: Model, every: int | None) -> None:
    a = f32([-0.0] * 160, [1.0, -1.0] * 80, [64, -64, -(2.0**-9)] + [-0.0] * 157)
    b = f32([1.0] * 160, [0.0] * 160)
    assert_same_bits(model(a[[0, 1]], b, every, E4M3, E4M3), np.zeros((2, 2), dtype=np.float32))
    assert_same_bits(model(a[[2]], b, every, E4M3, E4M3), np.zeros((1, 2), dtype=np.float32))


@MODELS
@PROMOTION
def test_terms_that_are_not_finite_decide_as_in_ieee_arithmetic(model: Model, every: int | None) -> None:
    inf, nan = math.inf, math.nan
    a = np.ones((7, 200), dtype=np.float32)
    a[:, 3] = [inf, -inf, nan, 1, inf, 1, 0]
    a[:, 150] = [1, 1, 1, 1, -inf, 1, 0]
    b = np.ones((4, 200), dtype=np.float32)
    b[:, 3] = [1, 0, -2, inf]
    found = model(a, b, every, E5M2, E5M2)
    np.testing.assert_array_equal(found, oracle(a, b, every, E5M2, E5M2))
    np.testing.assert_array_equal(found[:, 0], f32([inf, -inf, nan, 200, nan, 200, 198])[0])
    np.testing.assert_array_equal(found[:, 3], f32([inf, -inf, nan, inf, nan, inf, nan])[0])
    np.testing.assert_array_equal(found[[0, 5, 6], 1], f32([nan, 199, 198])[0])


@PROMOTION
def test_outputs_do_not_depend_on_their_neighbours(every: int | None) -> None:
    rng = np.random.default_rng(7)
    a, b = operand("normal", rng, 70, 96, E4M3), operand("normal", rng, 133, 96, E4M3)
    whole = hopper(a, b, promote_every=every)
    assert_same_bits(whole[60:70, 120:133], hopper(a[60:70], b[120:133], promote_every=every))
    assert_same_bits(whole, np.ascontiguousarray(hopper(b, a, promote_every=every).T))
    assert_same_bits(whole, hopper(np.asfortranarray(a), b[::-1], promote_every=every)[:, ::-1].copy())


def test_empty_operands_give_zeros_and_the_input_stays() -> None:
    empty = np.ones((3, 0), dtype=np.float32)
    assert_same_bits(hopper(empty, empty, promote_every=128), np.zeros((3, 3), dtype=np.float32))
    a = f32([1, math.nan])
    assert hopper(a[:0], a, promote_every=None).shape == (0, 1)
    hopper(a, a, promote_every=None)
    np.testing.assert_array_equal(a, f32([1, math.nan]))


@PROMOTION
@FORMATS_OF
def test_scales_are_applied_as_mmaemu_applies_them(formats: tuple[Format, Format], every: int | None) -> None:
    rng = np.random.default_rng(8)
    a, b = operand("normal", rng, 16, 256, formats[0]), operand("normal", rng, 32, 256, formats[1])
    a[0], b[0] = 0, 0
    left, right = (torch.from_numpy(x).to(TORCH_DTYPES[f.name]) for x, f in zip((a, b), formats, strict=True))
    for scale_a, scale_b in ((1, 1), (0.1234567, 7.654321), (-1e-20, 3e-23), (3e20, 1e18)):
        expected = mmaemu.scaled_mm(
            *(left, right.t(), torch.tensor(scale_a).float(), torch.tensor(scale_b).float()),
            out_dtype=torch.float32, use_fast_accum=every is None, profile="hopper", splitk=1,
        )  # fmt: skip
        accumulated = by_array(a, b, every, *formats)
        with np.errstate(over="ignore"):
            found = descale(accumulated, np.float32(scale_a), np.float32(scale_b))
        assert_same_bits(found, expected.numpy())


def test_what_is_no_fp8_product_is_refused() -> None:
    one = f32([1.0, 2.0])
    with pytest.raises(TypeError, match="expected float32, got float64"):
        hopper(one.astype(np.float64), one, promote_every=None)
    with pytest.raises(ValueError, match=r"expected a \(M, K\) and b \(N, K\), got \(1, 2\) and \(1, 1\)"):
        hopper(one, one[:, :1], promote_every=None)
    with pytest.raises(ValueError, match="expected values of E4M3"):
        hopper(one, one * np.float32(1.01), promote_every=None)
    with pytest.raises(ValueError, match="expected values of E4M3"):
        hopper(one * np.float32(1024), one, promote_every=None)
    for every in (0, -32, 100):
        with pytest.raises(ValueError, match=f"promote_every is {every}, expected None or a positive multiple of 32"):
            hopper(one, one, promote_every=every)
