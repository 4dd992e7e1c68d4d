"""Two other implementations of every cast, asked under our stated policies, and the inputs to ask about.

ml_dtypes and gfloat cannot be compared as they are: ml_dtypes never saturates, both choose a NaN of their own, and for
E8M0 they disagree on ties, on zero and below 2^-126. What is fed to them is clamped first, a NaN gets the code that our
policy states, and where they still disagree, `agreed_codes` says so.
"""

from __future__ import annotations

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import numpy.typing as npt
from gfloat.types import Domain

from fp8debug.formats import BoolArray, Float32Array, Format, Uint8Array

ML_DTYPES: dict[str, npt.DTypeLike] = {
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "E3M2": ml_dtypes.float6_e3m2fn,
    "E2M3": ml_dtypes.float6_e2m3fn,
    "E2M1": ml_dtypes.float4_e2m1fn,
    "E8M0": ml_dtypes.float8_e8m0fnu,
}


def _fnuz(name: str, precision: int, bias: int) -> gfloat.FormatInfo:
    """gfloat has no FNUZ formats, but everything they are made of."""
    return gfloat.FormatInfo(
        name, k=8, precision=precision, bias=bias, is_signed=True, domain=Domain.Finite, has_nz=False,
        num_high_nans=0, has_subnormals=True, is_twos_complement=False,
    )  # fmt: skip


GFLOAT: dict[str, gfloat.FormatInfo] = {
    "E4M3": gfloat.formats.format_info_ocp_e4m3,
    "E5M2": gfloat.formats.format_info_ocp_e5m2,
    "E4M3FNUZ": _fnuz("e4m3fnuz", 4, 8),
    "E5M2FNUZ": _fnuz("e5m2fnuz", 3, 16),
    "E3M2": gfloat.formats.format_info_ocp_e3m2,
    "E2M3": gfloat.formats.format_info_ocp_e2m3,
    "E2M1": gfloat.formats.format_info_ocp_e2m1,
    "E8M0": gfloat.formats.format_info_ocp_e8m0,
}


def every_bf16() -> Float32Array:
    """All 65,536 BF16 patterns."""
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def every_fp16() -> Float32Array:
    """All 65,536 FP16 patterns."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def random_fp32(n: int, seed: int = 8) -> Float32Array:
    """`n` random bit patterns."""
    return np.random.default_rng(seed).integers(0, 1 << 32, n, dtype=np.uint32).view(np.float32)


def around_values(fmt: Format) -> Float32Array:
    """Every finite value of the format, every midpoint, the float32 neighbours of both, and beyond; both signs."""
    values = np.arange(1 << fmt.bits, dtype=np.uint8).view(ML_DTYPES[fmt.name]).astype(np.float64)
    values = np.unique(np.abs(values[np.isfinite(values)]))
    beyond = np.array([0.0, fmt.overflow_threshold, 3.2e38, np.inf])
    exact = np.concatenate([values, (values[1:] + values[:-1]) / 2, beyond]).astype(np.float32)
    with np.errstate(over="ignore", under="ignore"):  # the neighbours of infinity and zero
        near = np.concatenate([exact, np.nextafter(exact, np.float32(0)), np.nextafter(exact, np.float32(np.inf))])
    return np.concatenate([near, -near])


def ml_dtypes_codes(x: Float32Array, fmt: Format, saturate: bool) -> Uint8Array:
    """Codes by ml_dtypes under our policies. Under E8M0 it is wrong between 2^-127 and 1.5 * 2^-127."""
    lowest = fmt.min_normal if fmt.is_scale else -fmt.max
    with np.errstate(invalid="ignore"):
        clamped = np.clip(x, np.float32(lowest), np.float32(fmt.max)) if saturate else x
        if fmt.is_scale:
            clamped = np.where(x < 0, x, clamped)
        codes = clamped.astype(ML_DTYPES[fmt.name]).view(np.uint8).copy()
    return _with_stated_nan(codes, x, np.isnan(x), fmt)


def gfloat_codes(x: Float32Array, fmt: Format, saturate: bool) -> tuple[Uint8Array, BoolArray]:
    """Codes by gfloat under our policies, and where it has any: its E8M0 is for normal numbers alone."""
    known = np.isfinite(x) & (x >= np.float32(2.0**-126)) if fmt.is_scale else np.ones(x.shape, bool)
    wide = np.where(known & ~np.isnan(x), x, 1).astype(np.float64)
    info = GFLOAT[fmt.name]
    rounded = gfloat.round_ndarray(info, wide, gfloat.RoundMode.TiesToEven, saturate or not fmt.has_nan)
    codes = gfloat.encode_ndarray(info, rounded).astype(np.uint8)
    return _with_stated_nan(codes, x, np.isnan(x) | np.isnan(rounded), fmt), known


def agreed_codes(x: Float32Array, fmt: Format, saturate: bool) -> tuple[Uint8Array, BoolArray]:
    """Codes by ml_dtypes, and where gfloat has the same."""
    codes = ml_dtypes_codes(x, fmt, saturate)
    others, known = gfloat_codes(x, fmt, saturate)
    return codes, known & (codes == others)


def exact_e8m0_codes(x: Float32Array, saturate: bool) -> Uint8Array:
    """E8M0 codes from the exponent that frexp finds, ties up: right everywhere, unlike either of the others."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        fraction, exponent = np.frexp(x.astype(np.float64))
    codes = np.maximum(exponent - 1 + (fraction >= 0.75) + 127, 0)
    codes = np.where((codes > 254) | np.isinf(x), 254 if saturate else 255, codes)
    codes = np.where(x == 0, 0 if saturate else 255, codes)
    return np.where(np.isnan(x) | (x < 0), 255, codes).astype(np.uint8)


def _with_stated_nan(codes: Uint8Array, x: Float32Array, nan: BoolArray, fmt: Format) -> Uint8Array:
    stated = {"E4M3": 0x7F, "E5M2": 0x7F, "E4M3FNUZ": 0x80, "E5M2FNUZ": 0x80, "E8M0": 0xFF}.get(fmt.name, fmt.max_code)
    sign = np.where(np.signbit(x) & (stated == 0x7F), 0x80, 0)
    result: Uint8Array = np.where(nan, stated | sign, codes).astype(np.uint8)
    return result
