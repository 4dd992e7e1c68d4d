"""The torch codecs, bit for bit, against the numpy ones and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from fp8debug import formats
from fp8debug.formats import E4M3, E5M2, Format
from fp8debug.hooks.measure import codecs

BOTH = pytest.mark.parametrize("fmt", [E4M3, E5M2], ids=["E4M3", "E5M2"])
ORACLE = {"E4M3": ml_dtypes.float8_e4m3fn, "E5M2": ml_dtypes.float8_e5m2}


def bf16_patterns() -> npt.NDArray[np.float32]:
    return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def random_patterns() -> npt.NDArray[np.float32]:
    return np.random.default_rng(8).integers(0, 1 << 32, 1 << 20, dtype=np.uint32).view(np.float32)


@BOTH
def test_codes_equal_the_numpy_codec_on_every_bf16_and_a_million_fp32_patterns(fmt: Format) -> None:
    for x in (bf16_patterns(), random_patterns()):
        codes = codecs.encode(torch.from_numpy(x), fmt).view(torch.uint8).numpy()
        np.testing.assert_array_equal(codes, formats.encode(x, fmt))


@BOTH
def test_codes_equal_ml_dtypes_after_clamping(fmt: Format) -> None:
    x = bf16_patterns()
    x = x[~np.isnan(x)]  # the NaN payloads differ
    codes = codecs.encode(torch.from_numpy(x), fmt).view(torch.uint8).numpy()
    expected = np.clip(x, -fmt.max, fmt.max).astype(ORACLE[fmt.name]).view(np.uint8)
    np.testing.assert_array_equal(codes, expected)


@BOTH
def test_fake_quantize_equals_the_numpy_twin_to_the_bit(fmt: Format) -> None:
    for x in (bf16_patterns(), random_patterns()):
        got = codecs.fake_quantize(torch.from_numpy(x), fmt)
        assert got.dtype == torch.float32
        expected = formats.fake_quantize(x, fmt)
        nan = np.isnan(x)
        assert np.isnan(got.numpy()[nan]).all()
        np.testing.assert_array_equal(got.numpy()[~nan].view(np.uint32), expected[~nan].view(np.uint32))


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
def test_half_precision_is_cast_from_its_exact_value(fmt: Format, dtype: torch.dtype) -> None:
    halves = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    codes = codecs.encode(halves, fmt).view(torch.uint8).numpy()
    np.testing.assert_array_equal(codes, formats.encode(halves.float().numpy(), fmt))


@BOTH
def test_shape_and_stride_are_free_and_gradients_are_not_followed(fmt: Format) -> None:
    x = torch.randn(4, 6, requires_grad=True)
    for view in (x, x.T, x[::2, 1::3], x[0, 0], x[:0]):
        got = codecs.fake_quantize(view, fmt)
        assert got.shape == view.shape and not got.requires_grad
        np.testing.assert_array_equal(got.numpy(), formats.fake_quantize(view.detach().numpy(), fmt))


def test_float64_is_refused_because_it_would_round_twice() -> None:
    with pytest.raises(TypeError, match=r"got torch\.float64"):
        codecs.encode(torch.zeros(1, dtype=torch.float64), E4M3)
