"""Block recipes against torchao on the CPU: scales, codes and what they mean, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fp8debug.blocks import quantize_blocks
from fp8debug.formats import E2M1, E4M3, E5M2, ELEMENT_FORMATS
from fp8debug.recipes import MXFP4, MXFP6, MXFP8, NVFP4, CurrentScaling, MXRecipe, RowWise

Float32Array = npt.NDArray[np.float32]
FORMATS: dict[str, tuple[type[MXRecipe], Any]] = {
    "E4M3": (MXFP8, torch.float8_e4m3fn),
    "E5M2": (MXFP8, torch.float8_e5m2),
    "E3M2": (MXFP6, "fp6_e3m2"),
    "E2M3": (MXFP6, "fp6_e2m3"),
    "E2M1": (MXFP4, torch.float4_e2m1fn_x2),
}


def f32(values: npt.ArrayLike) -> Float32Array:
    return np.array(values, dtype=np.float32)


def normal_bf16() -> Float32Array:
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0))
    values: Float32Array = x.bfloat16().float().numpy()
    return values


def any_magnitude() -> Float32Array:
    """Full-precision FP32 values, similar inside a block of 32, whose blocks cover the whole range of exponents."""
    rng = np.random.default_rng(1)
    exponents = rng.integers(0, 255, (2048, 1)) - rng.integers(0, 12, (2048, 32))
    bits = (
        np.clip(exponents, 0, 254) << 23 | rng.integers(0, 1 << 23, (2048, 32)) | rng.integers(0, 2, (2048, 32)) << 31
    )
    values: Float32Array = bits.astype(np.uint32).view(np.float32).reshape(1024, 64)
    return values


def unpacked(codes: torch.Tensor, fmt: str, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    from torchao.prototype.mx_formats.kernels import unpack_uint4

    codes = codes.view(torch.uint8)
    return (unpack_uint4(codes) if fmt == "E2M1" else codes).numpy().reshape(shape)


@pytest.mark.parametrize("rule", ["rceil", "floor", "ceil", "even"])
@pytest.mark.parametrize("fmt", FORMATS)
def test_mx_blocks_equal_to_mx(fmt: str, rule: str) -> None:
    """The exact rules where torchao is right, which it is on BF16 of usual magnitude; its flavour on anything."""
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    recipe, dtype = FORMATS[fmt]
    for x, flavour in ((normal_bf16(), "exact"), (normal_bf16(), "torchao"), (any_magnitude(), "torchao")):
        scales, codes = to_mx(torch.from_numpy(x), dtype, 32, ScaleCalculationMode[rule.upper()])
        mine = recipe(scale_rule=rule, flavour=flavour, fp8_format=fmt)
        blocks = quantize_blocks(x, mine, "x", ELEMENT_FORMATS[fmt])
        np.testing.assert_array_equal(blocks.factors.decode.view(np.uint32) >> 23, scales.view(torch.uint8).numpy())
        np.testing.assert_array_equal(blocks.codes, unpacked(codes, fmt, x.shape))


def normal(rng: np.random.Generator) -> Float32Array:
    return f32(rng.standard_normal((256, 64)))


def heavy_tailed(rng: np.random.Generator) -> Float32Array:
    """Its many small blocks are where flavours part."""
    return f32(rng.standard_normal((256, 64)) * np.exp(3 * rng.standard_normal((256, 64))))


def with_ties_of_the_scale(rng: np.random.Generator) -> Float32Array:
    """Block amaxes whose scales fall on midpoints of E4M3 or next to them: there the order of operations decides."""
    midpoints = rng.choice(np.arange(17, 32, 2), (256, 4)) * np.exp2(rng.integers(-4, 4, (256, 4)))
    x = rng.uniform(-1, 1, (256, 4, 16)) * midpoints[..., None]
    x[..., 0] = midpoints
    x[0, 0, 0] = 448
    return f32(x.reshape(256, 64) * rng.lognormal())


@pytest.mark.parametrize("make", [normal, heavy_tailed, with_ties_of_the_scale])
def test_nvfp4_blocks_equal_nvfp4_tensor(make: Callable[[np.random.Generator], Float32Array]) -> None:
    from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

    x = make(np.random.default_rng(2))
    scale = per_tensor_amax_to_scale(torch.tensor(np.abs(x).max()))
    theirs = NVFP4Tensor.to_nvfp4(torch.from_numpy(x), 16, per_tensor_scale=scale)
    blocks = quantize_blocks(x, NVFP4(flavour="torchao"), "x", E2M1)
    np.testing.assert_array_equal(blocks.codes, unpacked(theirs.qdata, "E2M1", x.shape))
    assert blocks.values.tobytes() == theirs.dequantize(torch.float32).numpy().tobytes()
    same = (quantize_blocks(x, NVFP4(), "x", E2M1).codes == blocks.codes).all()
    assert same == (make is normal)


@pytest.mark.parametrize("power_of_two", [True, False])
@pytest.mark.parametrize(("fmt", "dtype"), [(E4M3, torch.float8_e4m3fn), (E5M2, torch.float8_e5m2)])
def test_row_wise_and_current_scaling_equal_tensor_to_scale(fmt: Any, dtype: torch.dtype, power_of_two: bool) -> None:
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_utils import tensor_to_scale, to_fp8_saturated

    x = torch.from_numpy(normal_bf16() * np.exp2(np.arange(-128.0, 128.0, dtype=np.float32))[:, None] ** 0.5)
    x[7], x[9, 3], x[11, 5] = 0, torch.nan, torch.inf
    scale = tensor_to_scale(
        x,
        dtype,
        scaling_granularity=ScalingGranularity.AXISWISE,
        axiswise_dim=1,
        round_scales_to_power_of_2=power_of_two,
    )
    blocks = quantize_blocks(x.numpy(), RowWise(power_of_two=power_of_two), "x", fmt)
    np.testing.assert_array_equal(blocks.factors.encode, scale.numpy())
    codes = to_fp8_saturated(x * scale, dtype).view(torch.uint8).numpy()
    a_number = ~torch.isnan(x * scale).numpy()  # a NaN's sign is nobody's business
    np.testing.assert_array_equal(blocks.codes[a_number], codes[a_number])

    recipe = CurrentScaling(power_of_two=power_of_two, flavour="torchao")
    for row in x:
        whole = tensor_to_scale(row, dtype, round_scales_to_power_of_2=power_of_two)
        np.testing.assert_array_equal(recipe.scale(float(row.abs().max()), fmt), whole.numpy())
