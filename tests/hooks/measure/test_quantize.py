"""The torch quantiser gives, bit for bit, what the core's reference gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fp8debug import blocks, formats
from fp8debug.formats import E4M3, E5M2, FORMATS
from fp8debug.hooks.measure.quantize import largest_magnitude, quantize, smallest_magnitude
from fp8debug.recipes import BlockRecipe, TensorRecipe, parse_recipe

BLOCK_RECIPES = (
    "rowwise",
    "rowwise:power_of_two=false",
    "block",
    "block:power_of_two=false",
    "block:power_of_two=false,flavour=deepgemm",
    "block:power_of_two=false,flavour=deepseek",
    "mxfp8",
    "mxfp8:scale_rule=floor,fp8_format=HYBRID",
    "mxfp8:enable_2d_quantization=true",
    "mxfp6",
    "mxfp4:flavour=torchao",
    "nvfp4",
    "nvfp4:disable_rht=true,disable_2d_quantization=true",
    "nvfp4:flavour=torchao",
    "nvfp4:flavour=modelopt",
)
OPERANDS = [("x", "row"), ("w", "row"), ("dy", "row"), ("w", "column"), ("dy", "column"), ("x", "column")]


def spread_out(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Magnitudes over 16 octaves, some zeros."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    t = torch.randn(rows, columns, generator=generator)
    t *= torch.exp2(torch.randint(-12, 4, t.shape, generator=generator).float())
    return t.masked_fill(torch.rand(t.shape, generator=generator) < 0.05, 0.0).to(dtype)


def same(got: Tensor, expected: np.ndarray) -> bool:
    """Bit for bit; NaN equals NaN of either sign."""
    a, b = got.numpy(), expected
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all((np.ascontiguousarray(a).view(np.uint32) == np.ascontiguousarray(b).view(np.uint32)) | nan))


def reference(t: Tensor, recipe: BlockRecipe, tensor: str, orientation: str) -> np.ndarray:
    x = blocks.oriented(t.float().numpy(), orientation)
    if recipe.rotates(tensor, orientation):
        x = blocks.rotate(x)
    return blocks.quantize_blocks(x, recipe, tensor, recipe.formats_for(tensor)[0][0]).values


@pytest.mark.parametrize("text", BLOCK_RECIPES)
def test_block_recipes_equal_the_reference(text: str) -> None:
    recipe = parse_recipe(text)
    assert isinstance(recipe, BlockRecipe)
    # Whole tiles, partial ones both ways, less than one, and values that are none.
    odd = spread_out(37, 150)
    odd[3, 7], odd[20, 140], odd[36, 0] = math.nan, math.inf, -math.inf
    with np.errstate(all="ignore"):
        for t in (spread_out(128, 256, torch.bfloat16), odd, spread_out(5, 3), torch.zeros(16, 32)):
            for tensor, orientation in OPERANDS:
                got = quantize(t, recipe, tensor, orientation)
                assert got.dtype == torch.float32
                assert same(got, reference(t, recipe, tensor, orientation)), (tuple(t.shape), tensor, orientation)


@pytest.mark.parametrize("fmt", [f for f in FORMATS.values() if not f.is_scale], ids=lambda f: f.name)
def test_a_given_scale_and_format(fmt: formats.Format) -> None:
    t, scale = spread_out(33, 17), np.float32(0.3)
    got = quantize(t, parse_recipe("delayed"), "dy", "column", scale, fmt=fmt)
    assert same(got, formats.fake_quantize(t.numpy().T * scale, fmt) / scale)


@pytest.mark.parametrize(
    ("text", "tensor", "fmt"),
    [
        ("current", "x", E4M3),
        ("current", "dy", E5M2),
        ("current:power_of_two=true,fp8_format=E4M3", "dy", E4M3),
        ("static:scale=3", "w", E4M3),
    ],
)
def test_recipes_that_find_their_scale(text: str, tensor: str, fmt: formats.Format) -> None:
    recipe = parse_recipe(text)
    assert isinstance(recipe, TensorRecipe)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        t = spread_out(9, 14, dtype)
        values = t.float().numpy()
        scale = recipe.scale(float(np.abs(values).max()), fmt)
        assert same(quantize(t, recipe, tensor, "row"), formats.fake_quantize(values * scale, fmt) / scale)


@pytest.mark.parametrize("text", ["bf16", "coat", "coat:k=2"])
def test_recipes_that_do_more_than_scale(text: str) -> None:
    recipe, t = parse_recipe(text), spread_out(9, 14)
    assert isinstance(recipe, TensorRecipe)
    values, fmt = t.numpy(), recipe.formats_for("x")[0][0]
    magnitude = np.abs(values)
    expected, _ = recipe.round(values, float(magnitude.max()), float(magnitude[magnitude > 0].min()), fmt)
    assert same(quantize(t, recipe, "x", "column"), expected.T)
    if text == "bf16":
        assert same(quantize(t, recipe, "x", "row"), t.bfloat16().float().numpy())


def test_the_amax_of_the_whole_decides_for_a_part() -> None:
    """NVFP4's second scale and the scale of current scaling come from the whole tensor."""
    t = spread_out(64, 32)
    t[60, 3] = 1e4
    for text in ("nvfp4", "current"):
        recipe = parse_recipe(text)
        whole = quantize(t, recipe, "x", "row")
        assert torch.equal(quantize(t[:16], recipe, "x", "row", amax=1e4), whole[:16])
        assert not torch.equal(quantize(t[:16], recipe, "x", "row"), whole[:16])


def test_stochastic_rounding_has_its_own_source() -> None:
    recipe = parse_recipe("nvfp4:stochastic_rounding=true,disable_rht=true")
    t = spread_out(256, 64)
    state = torch.get_rng_state()
    draws = torch.stack(
        [quantize(t, recipe, "dy", "row", generator=torch.Generator().manual_seed(seed)) for seed in range(200)]
    )
    assert torch.equal(torch.get_rng_state(), state)
    again = quantize(t, recipe, "dy", "row", generator=torch.Generator().manual_seed(7))
    assert torch.equal(draws[7], again) and not torch.equal(draws[7], draws[8])
    # Unbiased wherever the rounded block scale lets nothing saturate: 200 draws average all but 1/14 of the error away.
    block_amax = t.abs().view(256, 4, 16).amax(2, keepdim=True).expand(256, 4, 16).reshape(t.shape)
    inside = t.abs() < 0.9 * block_amax
    error, bias = ((q - t)[inside].norm() for q in (draws[0], draws.mean(0)))
    assert bias < 0.08 * error
    nearest = parse_recipe("nvfp4:disable_rht=true")
    assert torch.equal(quantize(t, recipe, "x", "row"), quantize(t, nearest, "x", "row"))


def test_rotation_cancels_in_wgrad() -> None:
    """dw of rotated operands, before any rounding but BF16's, is dw; a last chunk that is not full stays as it is."""
    dy, x = spread_out(40, 24, torch.bfloat16), spread_out(40, 48, torch.bfloat16)
    a, b = (torch.from_numpy(blocks.rotate(t.float().numpy().T.copy())) for t in (dy, x))
    exact = dy.double().T @ x.double()
    assert ((a.double() @ b.double().T - exact).norm() / exact.norm()) < 2**-7
    recipe = parse_recipe("nvfp4")
    dw = quantize(dy, recipe, "dy", "column") @ quantize(x, recipe, "x", "column").T
    assert (dw - exact).norm() / exact.norm() < 0.3


def test_magnitudes() -> None:
    assert largest_magnitude(torch.tensor([[-3.0, math.nan], [0.0, 2.0]])) == 3.0
    assert largest_magnitude(torch.tensor([math.nan, -math.inf])) == math.inf
    assert largest_magnitude(torch.tensor([math.nan])) == 0.0
    assert largest_magnitude(torch.empty(0, 4)) == 0.0
    assert smallest_magnitude(torch.tensor([0.0, -0.5, math.nan, 2.0])) == 0.5
    assert smallest_magnitude(torch.zeros(3)) == 0.0


def test_nothing_in_nothing_out() -> None:
    for text in ("current", "mxfp8", "rowwise", "nvfp4"):
        recipe = parse_recipe(text)
        assert quantize(torch.empty(0, 32), recipe, "x", "row").shape == (0, 32)
        assert quantize(torch.empty(0, 32), recipe, "x", "column").shape == (32, 0)


def test_what_is_missing_is_said() -> None:
    t = torch.ones(2, 2)
    with pytest.raises(ValueError, match="delayed has a history"):
        quantize(t, parse_recipe("delayed"), "x", "row")
    with pytest.raises(ValueError, match="expected a generator"):
        quantize(t, parse_recipe("nvfp4:stochastic_rounding=true"), "dy", "row")
    with pytest.raises(TypeError, match="float64"):
        quantize(t.double(), parse_recipe("current"), "x", "row")
