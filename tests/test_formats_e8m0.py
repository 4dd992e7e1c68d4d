"""E8M0, judged by exact exponents: its three roundings, and what becomes of numbers that have no exponent."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from types import ModuleType

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.formats import (
    E8M0,
    Rounding,
    decode,
    encode,
    encode_e8m0,
    encode_e8m0_scalar,
    encode_scalar,
    fake_quantize,
    overflows,
)

Encoder = Callable[[npt.NDArray[np.float32], Rounding, bool], npt.NDArray[np.uint8]]


def from_bits(*bits: int) -> npt.NDArray[np.float32]:
    return np.array(bits, dtype=np.uint32).view(np.float32)


def encode_fast(x: npt.NDArray[np.float32], rounding: Rounding, saturate: bool = True) -> npt.NDArray[np.uint8]:
    return encode_e8m0(x, rounding, saturate=saturate)


def encode_slow(x: npt.NDArray[np.float32], rounding: Rounding, saturate: bool = True) -> npt.NDArray[np.uint8]:
    return np.array([encode_e8m0_scalar(v, rounding, saturate=saturate) for v in x.tolist()], dtype=np.uint8)


ENCODERS = pytest.mark.parametrize("encoder", [encode_fast, encode_slow], ids=["array", "scalar"])
ROUNDINGS = pytest.mark.parametrize("rounding", ["nearest", "up", "down"])
SATURATE = pytest.mark.parametrize("saturate", [True, False], ids=["saturating", "nonsaturating"])


def exact_code(x: float, rounding: Rounding) -> int:
    """Code of a positive finite number by comparing rational numbers, saturated."""
    exponent = -127
    while exponent < 127 and Fraction(2) ** (exponent + 1) <= Fraction(x):
        exponent += 1
    share = Fraction(x) / Fraction(2) ** exponent  # of the lower neighbour; below 1 only where there is none
    goes_up = {"nearest": share >= Fraction(3, 2), "up": share > 1, "down": False}[rounding]
    return min(exponent + goes_up, 127) + 127


@ENCODERS
@ROUNDINGS
def test_exponents_are_exact_around_every_power_of_two_and_every_tie(encoder: Encoder, rounding: Rounding) -> None:
    codes = np.arange(0, 255, 3)
    powers = np.ldexp(1.0, codes - 127)
    points = np.concatenate([powers, powers * 1.5]).astype(np.float32)
    x = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    assert encoder(x, rounding, True).tolist() == [exact_code(v, rounding) for v in x.tolist()]


@ENCODERS
@SATURATE
def test_nearest_is_what_encode_does(cast_oracles: ModuleType, encoder: Encoder, saturate: bool) -> None:
    for x in (cast_oracles.every_bf16(), cast_oracles.every_fp16(), cast_oracles.random_fp32(1 << 18)):
        some = x if encoder is encode_fast else x[::31]
        expected = cast_oracles.exact_e8m0_codes(some, saturate)
        np.testing.assert_array_equal(encoder(some, "nearest", saturate), expected)
        if encoder is encode_fast:
            np.testing.assert_array_equal(encode(some, E8M0, saturate=saturate), expected)
        else:
            assert [encode_scalar(v, E8M0, saturate=saturate) for v in some.tolist()] == expected.tolist()


@SATURATE
def test_where_ml_dtypes_and_gfloat_agree_so_do_we(cast_oracles: ModuleType, saturate: bool) -> None:
    for x in (cast_oracles.every_bf16(), cast_oracles.every_fp16(), cast_oracles.random_fp32(1 << 18)):
        expected, agreed = cast_oracles.agreed_codes(x, E8M0, saturate)
        normal = (x >= np.float32(2.0**-126)) & np.isfinite(x)
        tie = normal & ((x.view(np.uint32) & 0x7FFFFF) == 0x400000)
        assert (agreed | tie)[normal].all()  # gfloat takes the even code
        np.testing.assert_array_equal(encode(x, E8M0, saturate=saturate)[agreed], expected[agreed])


@ENCODERS
@ROUNDINGS
def test_numbers_without_an_exponent_become_what_is_stated(encoder: Encoder, rounding: Rounding) -> None:
    x = from_bits(0x00000000, 0x80000000, 0x7F800000, 0x7FC00000, 0xFFC00000, 0xBF800000, 0xFF800000, 0x80000001)
    assert encoder(x, rounding, True).tolist() == [0, 0, 254, 255, 255, 255, 255, 255]
    assert encoder(x, rounding, False).tolist() == [255] * 8


@ENCODERS
def test_ends_of_the_range(encoder: Encoder) -> None:
    # 1 ulp, below 2^-127, 2^-127, above it, below 1.5 * 2^-127, that, below 2^-126, 2^-126; 2^127, above it, 1.5 of it
    x = from_bits(1, 0x3FFFFF, 0x400000, 0x400001, 0x5FFFFF, 0x600000, 0x7FFFFF, 0x800000)
    assert encoder(x, "nearest", False).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert encoder(x, "up", False).tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert encoder(x, "down", False).tolist() == [0, 0, 0, 0, 0, 0, 0, 1]
    x = from_bits(0x7F000000, 0x7F000001, 0x7F3FFFFF, 0x7F400000, 0x7F7FFFFF)
    assert encoder(x, "nearest", False).tolist() == [254, 254, 254, 255, 255]
    assert encoder(x, "up", False).tolist() == [254, 255, 255, 255, 255]
    assert encoder(x, "down", False).tolist() == [254] * 5
    assert encoder(x, "up", True).tolist() == [254] * 5
    assert overflows(x, E8M0).tolist() == [False, False, False, True, True]
    others = np.array([np.inf, -np.inf, -1.75 * 2.0**127, np.nan], dtype=np.float32)
    assert overflows(others, E8M0).tolist() == [True, False, False, False]


def test_values_are_powers_of_two_and_nan() -> None:
    values = decode(np.arange(256, dtype=np.uint8), E8M0)
    assert values[:255].tolist() == [math.ldexp(1.0, code - 127) for code in range(255)]
    assert np.isnan(values[255])
    np.testing.assert_array_equal(fake_quantize(values, E8M0), values)
    rounded = fake_quantize(np.array([0, -1, 3, 2.9], dtype=np.float32), E8M0)
    np.testing.assert_array_equal(rounded, [2.0**-127, np.nan, 4, 2])


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(TypeError, match="expected float32, got float64"):
        encode_e8m0(np.ones(1))  # type: ignore[arg-type]
