"""The codecs, bit for bit, against ml_dtypes, gfloat and vectors from exact arithmetic.

Everything runs over the fast path and over its scalar twin, which gets fewer values. For E8M0 see test_formats_e8m0.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug.formats import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    E8M0,
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
ALL = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
ELEMENTS = pytest.mark.parametrize("fmt", ELEMENT_FORMATS.values(), ids=list(ELEMENT_FORMATS))
SATURATE = pytest.mark.parametrize("saturate", [True, False], ids=["saturating", "nonsaturating"])
NAN, INF = math.nan, math.inf

Encoder = Callable[[npt.NDArray[np.float32], Format, bool], npt.NDArray[np.uint8]]


def f32(values: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def u8(values: Sequence[int]) -> npt.NDArray[np.uint8]:
    return np.array(values, dtype=np.uint8)


def encode_fast(x: npt.NDArray[np.float32], fmt: Format, saturate: bool) -> npt.NDArray[np.uint8]:
    return encode(x, fmt, saturate=saturate)


def encode_slow(x: npt.NDArray[np.float32], fmt: Format, saturate: bool) -> npt.NDArray[np.uint8]:
    return u8([encode_scalar(v, fmt, saturate=saturate) for v in x.tolist()])


ENCODERS = pytest.mark.parametrize("encoder", [encode_fast, encode_slow], ids=["array", "scalar"])


@ENCODERS
@SATURATE
def test_encode_returns_the_code_of_every_midpoint_vector(encoder: Encoder, saturate: bool) -> None:
    rows = list(csv.DictReader(MIDPOINTS.read_text().splitlines()))
    assert len(rows) == 753
    column = "code_saturating" if saturate else "code_nonsaturating"
    for fmt in (E4M3, E5M2):
        mine = [row for row in rows if row["fmt"] == fmt.name.lower()]
        x = np.array([int(row["x_u32"], 16) for row in mine], dtype=np.uint32).view(np.float32)
        np.testing.assert_array_equal(encoder(x, fmt, saturate), u8([int(row[column], 16) for row in mine]))


def patterns(oracles: ModuleType, fmt: Format, encoder: Encoder) -> list[npt.NDArray[np.float32]]:
    """All that is asked of a fast path, a sample of it for a slow one, and always what stands around the values."""
    stride = 1 if encoder is encode_fast else 29
    found = (oracles.every_bf16(), oracles.every_fp16(), oracles.random_fp32(1 << 18))
    return [*(x[::stride] for x in found), oracles.around_values(fmt)]


@ENCODERS
@SATURATE
@ELEMENTS
def test_every_bf16_and_fp16_pattern_is_encoded_as_by_ml_dtypes_and_gfloat(
    cast_oracles: ModuleType, fmt: Format, saturate: bool, encoder: Encoder
) -> None:
    for x in patterns(cast_oracles, fmt, encoder):
        expected, agreed = cast_oracles.agreed_codes(x, fmt, saturate)
        assert agreed.all()
        np.testing.assert_array_equal(encoder(x, fmt, saturate), expected)


@ALL
def test_fake_quantize_is_decode_of_encode_to_the_bit(cast_oracles: ModuleType, fmt: Format) -> None:
    for x in patterns(cast_oracles, fmt, encode_fast):
        rounded, nan = fake_quantize(x, fmt), np.isnan(x)
        assert np.isnan(rounded[nan]).all()
        expected = decode(encode(x, fmt), fmt)
        np.testing.assert_array_equal(rounded[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@ELEMENTS
@settings(deadline=None)  # a busy machine is no failure
@given(x=st.floats(width=32, allow_nan=False))
def test_fake_quantize_is_idempotent_odd_and_bounded(fmt: Format, x: float) -> None:
    value = f32([x])
    once = fake_quantize(value, fmt)
    np.testing.assert_array_equal(fake_quantize(once, fmt).view(np.uint32), once.view(np.uint32))
    np.testing.assert_array_equal(fake_quantize(-value, fmt), -once)
    assert abs(float(once[0])) <= fmt.max
    if fmt.min_normal <= abs(x) <= fmt.max:
        assert abs(float(once[0]) - x) <= abs(x) * fmt.max_gain_error


@pytest.mark.parametrize(
    ("fmt", "code", "value"),
    [
        *((E4M3, 0x00, 0.0), (E4M3, 0x01, 2.0**-9), (E4M3, 0x07, 7 * 2.0**-9), (E4M3, 0x08, 2.0**-6)),
        *((E4M3, 0x38, 1.0), (E4M3, 0x39, 1.125), (E4M3, 0x7E, 448.0), (E4M3, 0xFE, -448.0)),
        *((E5M2, 0x01, 2.0**-16), (E5M2, 0x04, 2.0**-14), (E5M2, 0x3C, 1.0), (E5M2, 0x7B, 57344.0)),
        *((E5M2, 0x7C, INF), (E5M2, 0xFC, -INF)),
        *((E4M3FNUZ, 0x01, 2.0**-10), (E4M3FNUZ, 0x08, 2.0**-7), (E4M3FNUZ, 0x40, 1.0), (E4M3FNUZ, 0xFF, -240.0)),
        *((E5M2FNUZ, 0x01, 2.0**-17), (E5M2FNUZ, 0x04, 2.0**-15), (E5M2FNUZ, 0x40, 1.0), (E5M2FNUZ, 0x7F, 57344.0)),
        *((E3M2, 0x01, 0.0625), (E3M2, 0x04, 0.25), (E3M2, 0x0C, 1.0), (E3M2, 0x3F, -28.0)),
        *((E2M3, 0x01, 0.125), (E2M3, 0x08, 1.0), (E2M3, 0x1F, 7.5), (E2M3, 0x21, -0.125)),
        *((E2M1, 0x01, 0.5), (E2M1, 0x02, 1.0), (E2M1, 0x05, 3.0), (E2M1, 0x0F, -6.0)),
        *((E8M0, 0x00, 2.0**-127), (E8M0, 0x01, 2.0**-126), (E8M0, 0x7F, 1.0), (E8M0, 0xFE, 2.0**127)),
    ],
)
def test_code_means_value(fmt: Format, code: int, value: float) -> None:
    assert decode_scalar(code, fmt) == value
    assert decode(u8([code]), fmt)[0] == value
    assert encode_scalar(value, fmt, saturate=False) == code
    assert encode(f32([value]), fmt, saturate=False)[0] == code


@ALL
def test_decode_equals_ml_dtypes_on_every_code(cast_oracles: ModuleType, fmt: Format) -> None:
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    expected = codes.view(cast_oracles.ML_DTYPES[fmt.name]).astype(np.float32)
    scalars = f32([decode_scalar(code, fmt) for code in codes.tolist()])
    for got in (decode(codes, fmt), scalars):
        np.testing.assert_array_equal(got, expected)
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


@pytest.mark.parametrize("fmt", [E3M2, E2M1], ids=["E3M2", "E2M1"])
def test_a_code_with_too_many_bits_is_refused(fmt: Format) -> None:
    with pytest.raises(IndexError):
        decode(u8([1 << fmt.bits]), fmt)
    with pytest.raises(IndexError, match=rf"code {1 << fmt.bits} of {fmt.name}: expected 0 to {(1 << fmt.bits) - 1}"):
        decode_scalar(1 << fmt.bits, fmt)


@ENCODERS
@pytest.mark.parametrize(
    ("fmt", "saturated", "kept", "nan", "tiny"),
    [  # codes of (inf, -inf), of the same when not saturated, of (NaN, -NaN), of (0, -0, 1e-30, -1e-30)
        (E4M3, [0x7E, 0xFE], [0x7F, 0xFF], [0x7F, 0xFF], [0, 0x80, 0, 0x80]),
        (E5M2, [0x7B, 0xFB], [0x7C, 0xFC], [0x7F, 0xFF], [0, 0x80, 0, 0x80]),
        (E4M3FNUZ, [0x7F, 0xFF], [0x80, 0x80], [0x80, 0x80], [0, 0, 0, 0]),
        (E5M2FNUZ, [0x7F, 0xFF], [0x80, 0x80], [0x80, 0x80], [0, 0, 0, 0]),
        (E3M2, [0x1F, 0x3F], [0x1F, 0x3F], [0x1F, 0x1F], [0, 0x20, 0, 0x20]),
        (E2M3, [0x1F, 0x3F], [0x1F, 0x3F], [0x1F, 0x1F], [0, 0x20, 0, 0x20]),
        (E2M1, [0x07, 0x0F], [0x07, 0x0F], [0x07, 0x07], [0, 0x08, 0, 0x08]),
    ],
)
def test_what_a_format_cannot_hold_becomes_what_is_stated(
    encoder: Encoder, fmt: Format, saturated: list[int], kept: list[int], nan: list[int], tiny: list[int]
) -> None:
    infinite, nans, small = f32([INF, -INF]), f32([NAN, -NAN]), f32([0.0, -0.0, 1e-30, -1e-30])
    assert encoder(infinite, fmt, True).tolist() == saturated
    assert encoder(infinite, fmt, False).tolist() == kept
    for saturate in (True, False):
        assert encoder(nans, fmt, saturate).tolist() == nan
        assert encoder(small, fmt, saturate).tolist() == tiny
    assert np.isnan(fake_quantize(nans, fmt)).all()
    assert np.signbit(fake_quantize(small, fmt)).tolist() == [False, fmt.has_negative_zero] * 2


@pytest.mark.parametrize(
    ("fmt", "last_within", "first_beyond"),
    [
        (E4M3, 464.0, np.nextafter(np.float32(464), np.float32(500))),
        (E5M2, np.nextafter(np.float32(61440), np.float32(0)), 61440.0),
        (E4M3FNUZ, np.nextafter(np.float32(248), np.float32(0)), 248.0),
        (E5M2FNUZ, np.nextafter(np.float32(61440), np.float32(0)), 61440.0),
        (E3M2, np.nextafter(np.float32(30), np.float32(0)), 30.0),
        (E2M3, np.nextafter(np.float32(7.75), np.float32(0)), 7.75),
        (E2M1, np.nextafter(np.float32(7), np.float32(0)), 7.0),
    ],
)
def test_overflow_starts_at_the_threshold_of_the_format(fmt: Format, last_within: float, first_beyond: float) -> None:
    within, beyond = [fmt.max, last_within, -last_within, NAN], [first_beyond, -first_beyond, INF, -INF]
    assert overflows(f32(within), fmt).tolist() == [False] * 4
    assert overflows(f32(beyond), fmt).tolist() == [True] * 4


@pytest.mark.parametrize("fmt", [E4M3, E5M2, E4M3FNUZ, E5M2FNUZ], ids=lambda fmt: fmt.name)
def test_overflow_is_where_the_unclamped_cast_leaves_the_finite_values(cast_oracles: ModuleType, fmt: Format) -> None:
    for x in patterns(cast_oracles, fmt, encode_fast):
        with np.errstate(invalid="ignore"):
            cast = x.astype(cast_oracles.ML_DTYPES[fmt.name]).astype(np.float32)
        np.testing.assert_array_equal(overflows(x, fmt), ~np.isfinite(cast) & ~np.isnan(x))


@pytest.mark.parametrize(
    ("fmt", "maximum", "min_normal", "min_subnormal"),
    [
        (E4M3, 448.0, 2.0**-6, 2.0**-9),
        (E5M2, 57344.0, 2.0**-14, 2.0**-16),
        (E4M3FNUZ, 240.0, 2.0**-7, 2.0**-10),
        (E5M2FNUZ, 57344.0, 2.0**-15, 2.0**-17),
        (E3M2, 28.0, 0.25, 0.0625),
        (E2M3, 7.5, 1.0, 0.125),
        (E2M1, 6.0, 1.0, 0.5),
        (E8M0, 2.0**127, 2.0**-127, 2.0**-127),
    ],
)
def test_numbers_of_a_format_are_those_of_its_specification(
    cast_oracles: ModuleType, fmt: Format, maximum: float, min_normal: float, min_subnormal: float
) -> None:
    assert (fmt.max, fmt.min_normal, fmt.min_subnormal) == (maximum, min_normal, min_subnormal)
    info = ml_dtypes.finfo(cast_oracles.ML_DTYPES[fmt.name])  # type: ignore[no-untyped-call]
    assert (float(info.max), float(info.smallest_normal), info.bits) == (maximum, min_normal, fmt.bits)
    assert decode_scalar(fmt.max_code, fmt) == maximum
    spacing = maximum - decode_scalar(fmt.max_code - 1, fmt)
    if not fmt.is_scale:  # whose next value is twice as far
        assert fmt.overflow_threshold == maximum + spacing / 2
        assert fmt.overflow_at_threshold == bool(fmt.max_code & 1)  # the tie goes to the even code
    worst = 1 / (2 ** (fmt.mantissa_bits + 1) + 1)  # the first midpoint of a binade
    assert fmt.max_gain_error == worst
    assert fmt.rounding_floor_sqnr_db == round(-20 * math.log10(worst), 1)


@ALL
def test_baseline_is_the_sqnr_of_a_normal_tensor_at_its_best_scale(fmt: Format) -> None:
    normal = np.random.default_rng(1).standard_normal(1 << 16)
    x64 = np.abs(normal) if fmt.is_scale else normal
    found = []
    for scale in 2.0 ** np.arange(-1, 4, 0.25):
        x = (x64 * scale).astype(np.float32)
        error = fake_quantize(x, fmt).astype(np.float64) - x
        found.append(10 * math.log10(np.sum(x.astype(np.float64) ** 2) / np.sum(error**2)))
    assert max(found) == pytest.approx(fmt.baseline_sqnr_db, abs=0.15)


@ALL
def test_any_shape_and_stride_works_and_the_input_stays(cast_oracles: ModuleType, fmt: Format) -> None:
    x = cast_oracles.random_fp32(24).reshape(4, 6)
    before = x.copy()
    for view in (x, x.T, x[::2, 1::3], x[0, 0:1].reshape(()), x[:0]):
        flat = np.ascontiguousarray(view).reshape(-1)
        assert fake_quantize(view, fmt).shape == encode(view, fmt).shape == view.shape
        np.testing.assert_array_equal(fake_quantize(view, fmt).reshape(-1), fake_quantize(flat, fmt))
        np.testing.assert_array_equal(encode(view, fmt).reshape(-1), encode(flat, fmt))
    np.testing.assert_array_equal(x.view(np.uint32), before.view(np.uint32))


@ALL
def test_other_dtypes_are_refused_because_they_would_round_twice(fmt: Format) -> None:
    for cast in (encode, fake_quantize):
        with pytest.raises(TypeError, match="expected float32, got float64"):
            cast(np.array([17 + 1e-9]), fmt)


def test_formats_are_found_by_name() -> None:
    assert list(FORMATS) == ["E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ", "E3M2", "E2M3", "E2M1", "E8M0"]
    assert list(ELEMENT_FORMATS) == list(FORMATS)[:-1]
    assert all(name == fmt.name for name, fmt in FORMATS.items())


def test_documentation_has_the_numbers_of_every_format() -> None:
    page = (Path(__file__).parent.parent / "docs" / "formats.md").read_text(encoding="utf-8")
    lines = [line.strip("|") for line in page.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    told = {row[0].split("`")[1]: [number(cell) for cell in row[1:6]] for row in rows}
    assert told == {
        fmt.name: [fmt.bits, fmt.max, fmt.min_normal, fmt.min_subnormal, fmt.overflow_threshold]
        for fmt in FORMATS.values()
    }


def number(cell: str) -> float:
    """448, 2^-9, 1.5\N{MIDDLE DOT}2^127 or "above 464" as a number."""
    factor, _, power = cell.removeprefix("above ").rpartition("\N{MIDDLE DOT}")
    base, _, exponent = power.partition("^")
    return float(factor or 1) * math.pow(float(base), float(exponent or 1))
