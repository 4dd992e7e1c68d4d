"""The codecs, bit for bit, against ml_dtypes and against vectors from exact arithmetic.

Every vector runs over the fast path and over its scalar twin.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug.formats import (
    E4M3,
    E5M2,
    ELEMENT_FORMATS,
    FORMATS,
    Format,
    decode,
    decode_scalar,
    encode,
    encode_scalar,
    fake_quantize,
    overflows,
)

MIDPOINTS = Path(__file__).parent / "data" / "scalar_cast_midpoints.csv"
BOTH = pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=["E4M3", "E5M2"])
ORACLE = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}

Encoder = Callable[[npt.NDArray[np.float32], Format, bool], npt.NDArray[np.uint8]]


def f32(values: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def u8(values: Sequence[int]) -> npt.NDArray[np.uint8]:
    return np.array(values, dtype=np.uint8)


def encode_fast(x: npt.NDArray[np.float32], fmt: Format, saturate: bool) -> npt.NDArray[np.uint8]:
    return encode(x, fmt, saturate=saturate)


def encode_slow(x: npt.NDArray[np.float32], fmt: Format, saturate: bool) -> npt.NDArray[np.uint8]:
    return np.array([encode_scalar(v, fmt, saturate=saturate) for v in x.tolist()], dtype=np.uint8)


ENCODERS = pytest.mark.parametrize("encoder", [encode_fast, encode_slow], ids=["array", "scalar"])


def bf16_patterns() -> npt.NDArray[np.float32]:
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def random_patterns(n: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(8).integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)


def around_values(fmt: Format) -> npt.NDArray[np.float32]:
    """Every finite value of the format, every midpoint, and the float32 neighbours of both; past the end too."""
    finite = np.unique(np.abs(np.arange(256, dtype=np.uint8).view(ORACLE[fmt.name]).astype(np.float32)))
    finite = finite[np.isfinite(finite)]
    points = np.concatenate([finite, (finite[1:] + finite[:-1]) / 2, f32([fmt.overflow_threshold, 1e9, np.inf])])
    with np.errstate(over="ignore"):  # the neighbour above infinity
        near = np.concatenate([points, np.nextafter(points, np.float32(0)), np.nextafter(points, np.float32(np.inf))])
    return np.concatenate([near, -near])


def oracle_codes(x: npt.NDArray[np.float32], fmt: Format, saturate: bool) -> npt.NDArray[np.uint8]:
    """ml_dtypes after clamping; its NaN payload differs from ours and means the same, so it is replaced."""
    with np.errstate(invalid="ignore"):
        clamped = np.clip(x, -fmt.max, fmt.max) if saturate else x
        cast = clamped.astype(ORACLE[fmt.name])
    codes: npt.NDArray[np.uint8] = cast.view(np.uint8).copy()
    nan = np.isnan(cast.astype(np.float32))
    codes[nan] = np.where(np.signbit(x[nan]), 0xFF, 0x7F)
    return codes


@ENCODERS
@pytest.mark.parametrize("saturate", [True, False], ids=["saturating", "nonsaturating"])
def test_encode_returns_the_code_of_every_midpoint_vector(encoder: Encoder, saturate: bool) -> None:
    rows = list(csv.DictReader(MIDPOINTS.read_text().splitlines()))
    assert len(rows) == 753
    column = "code_saturating" if saturate else "code_nonsaturating"
    for fmt in (E4M3, E5M2):
        mine = [row for row in rows if row["fmt"] == fmt.name.lower()]
        x = np.array([int(row["x_u32"], 16) for row in mine], dtype=np.uint32).view(np.float32)
        expected = np.array([int(row[column], 16) for row in mine], dtype=np.uint8)
        np.testing.assert_array_equal(encoder(x, fmt, saturate), expected)


@BOTH
@pytest.mark.parametrize("saturate", [True, False], ids=["saturating", "nonsaturating"])
def test_encode_equals_ml_dtypes_on_every_bf16_and_a_million_fp32_patterns(fmt: Format, saturate: bool) -> None:
    for x in (bf16_patterns(), random_patterns(1 << 20), around_values(fmt)):
        np.testing.assert_array_equal(encode(x, fmt, saturate=saturate), oracle_codes(x, fmt, saturate))


@BOTH
@pytest.mark.parametrize("saturate", [True, False], ids=["saturating", "nonsaturating"])
def test_scalar_twin_equals_ml_dtypes(fmt: Format, saturate: bool) -> None:
    for x in (bf16_patterns()[::7], random_patterns(1 << 13), around_values(fmt)):
        np.testing.assert_array_equal(encode_slow(x, fmt, saturate), oracle_codes(x, fmt, saturate))


@BOTH
def test_fake_quantize_is_decode_of_encode_to_the_bit(fmt: Format) -> None:
    for x in (bf16_patterns(), random_patterns(1 << 20), around_values(fmt)):
        rounded = fake_quantize(x, fmt)
        nan = np.isnan(x)
        assert np.isnan(rounded[nan]).all()
        expected = decode(encode(x, fmt), fmt)
        np.testing.assert_array_equal(rounded[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@BOTH
@settings(deadline=None)  # a busy machine is no failure
@given(x=st.floats(width=32, allow_nan=False))
def test_fake_quantize_is_idempotent_odd_and_bounded(fmt: Format, x: float) -> None:
    value = f32([x])
    once = fake_quantize(value, fmt)
    np.testing.assert_array_equal(fake_quantize(once, fmt).view(np.uint32), once.view(np.uint32))
    np.testing.assert_array_equal(fake_quantize(-value, fmt).view(np.uint32), (-once).view(np.uint32))
    assert abs(float(once[0])) <= fmt.max
    if fmt.min_normal <= abs(x) <= fmt.max:
        assert abs(float(once[0]) - x) <= abs(x) * fmt.max_gain_error


@pytest.mark.parametrize(
    ("fmt", "code", "value"),
    [
        (E4M3, 0x00, 0.0),
        (E4M3, 0x01, 2.0**-9),
        (E4M3, 0x07, 7 * 2.0**-9),
        (E4M3, 0x08, 2.0**-6),
        (E4M3, 0x38, 1.0),
        (E4M3, 0x39, 1.125),
        (E4M3, 0x7E, 448.0),
        (E4M3, 0xFE, -448.0),
        (E5M2, 0x01, 2.0**-16),
        (E5M2, 0x04, 2.0**-14),
        (E5M2, 0x3C, 1.0),
        (E5M2, 0x7B, 57344.0),
        (E5M2, 0x7C, math.inf),
        (E5M2, 0xFC, -math.inf),
    ],
)
def test_code_means_value(fmt: Format, code: int, value: float) -> None:
    assert decode_scalar(code, fmt) == value
    assert decode(u8([code]), fmt)[0] == value
    assert encode_scalar(value, fmt, saturate=False) == code
    assert encode(f32([value]), fmt, saturate=False)[0] == code


@BOTH
def test_decode_equals_ml_dtypes_on_every_code(fmt: Format) -> None:
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(ORACLE[fmt.name]).astype(np.float32)
    np.testing.assert_array_equal(decode(codes, fmt), expected)
    np.testing.assert_array_equal([decode_scalar(code, fmt) for code in range(256)], expected)
    np.testing.assert_array_equal(np.signbit(decode(codes, fmt)[[0x00, 0x80]]), [False, True])


@BOTH
def test_infinities_saturate_and_nan_and_zero_keep_their_sign(fmt: Format) -> None:
    x = f32([np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-30, -1e-30])
    expected = [fmt.max_code, 0x80 | fmt.max_code, 0x7F, 0xFF, 0x00, 0x80, 0x00, 0x80]
    assert encode(x, fmt).tolist() == expected
    assert [encode_scalar(v, fmt) for v in x.tolist()] == expected
    np.testing.assert_array_equal(np.signbit(fake_quantize(x, fmt)), np.signbit(x))


def test_overflow_starts_at_the_threshold_of_the_format() -> None:
    above = np.nextafter(f32([464, 61440]), np.float32(np.inf))
    below = np.nextafter(np.float32(61440), np.float32(0))
    assert overflows(f32([448, 464, above[0], -above[0], np.inf, -np.inf, np.nan]), E4M3).tolist() == [
        *(False, False, True, True, True, True, False)
    ]
    assert overflows(f32([57344, below, 61440, -61440, above[1], np.inf, np.nan]), E5M2).tolist() == [
        *(False, False, True, True, True, True, False)
    ]


@BOTH
def test_overflow_is_where_the_unclamped_cast_leaves_the_finite_values(fmt: Format) -> None:
    for x in (bf16_patterns(), random_patterns(1 << 20), around_values(fmt)):
        with np.errstate(invalid="ignore"):
            cast = x.astype(ORACLE[fmt.name]).astype(np.float32)
        np.testing.assert_array_equal(overflows(x, fmt), ~np.isfinite(cast) & ~np.isnan(x))


@BOTH
def test_constants_follow_from_the_layout(fmt: Format) -> None:
    info = ml_dtypes.finfo(ORACLE[fmt.name])  # type: ignore[no-untyped-call]
    assert 1 + fmt.exponent_bits + fmt.mantissa_bits == 8
    assert fmt.max == float(info.max) == decode_scalar(fmt.max_code, fmt)
    assert fmt.min_normal == float(info.smallest_normal) == 2.0 ** (1 - fmt.bias)
    assert fmt.min_subnormal == float(info.smallest_subnormal) == fmt.min_normal * 2.0**-fmt.mantissa_bits
    spacing = fmt.max - decode_scalar(fmt.max_code - 1, fmt)
    assert fmt.overflow_threshold == fmt.max + spacing / 2
    assert fmt.overflow_at_threshold == bool(fmt.max_code & 1)  # the tie goes to the even code
    worst = 1 / (2 ** (fmt.mantissa_bits + 1) + 1)  # the first midpoint of a binade
    assert fmt.max_gain_error == worst
    assert fmt.rounding_floor_sqnr_db == round(-20 * math.log10(worst), 1)


@BOTH
def test_baseline_is_the_sqnr_of_a_normal_tensor(fmt: Format) -> None:
    x = np.random.default_rng(1).standard_normal(1 << 18).astype(np.float32)
    error = fake_quantize(x, fmt).astype(np.float64) - x
    sqnr = 10 * math.log10(np.sum(x.astype(np.float64) ** 2) / np.sum(error**2))
    assert sqnr == pytest.approx(fmt.baseline_sqnr_db, abs=0.1)


@BOTH
def test_any_shape_and_stride_works_and_the_input_stays(fmt: Format) -> None:
    x = random_patterns(24).reshape(4, 6)
    before = x.copy()
    for view in (x, x.T, x[::2, 1::3], x[0, 0:1].reshape(()), x[:0]):
        flat = np.ascontiguousarray(view).reshape(-1)
        assert fake_quantize(view, fmt).shape == encode(view, fmt).shape == view.shape
        np.testing.assert_array_equal(fake_quantize(view, fmt).reshape(-1), fake_quantize(flat, fmt))
        np.testing.assert_array_equal(encode(view, fmt).reshape(-1), encode(flat, fmt))
    np.testing.assert_array_equal(x.view(np.uint32), before.view(np.uint32))


def test_other_dtypes_are_refused_because_they_would_round_twice() -> None:
    wide = np.array([17 + 1e-9])
    assert encode_scalar(17 + 1e-9, E4M3) != encode_scalar(float(np.float32(17 + 1e-9)), E4M3)
    for cast in (encode, fake_quantize):
        with pytest.raises(TypeError, match="expected float32, got float64"):
            cast(wide, E4M3)


def test_formats_are_found_by_name() -> None:
    assert list(FORMATS) == ["E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ", "E3M2", "E2M3", "E2M1", "E8M0"]
    assert list(ELEMENT_FORMATS) == list(FORMATS)[:-1]
    assert all(name == fmt.name for name, fmt in FORMATS.items())
