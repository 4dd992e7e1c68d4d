"""Sampled lines are quantised as the whole tensor would be, bit for bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fp8debug.blocks import oriented, quantize_blocks, rotate
from fp8debug.formats import E5M2
from fp8debug.hooks.probe.operand import Operand, take_operand, tiles_of
from fp8debug.hooks.probe.quantized import quantized
from fp8debug.hooks.recorder import Facts
from fp8debug.hooks.scales import InForce
from fp8debug.recipes import BlockRecipe, parse_recipe, scaled_cast

BLOCKS = """rowwise block block:power_of_two=false,flavour=deepseek block:flavour=deepgemm mxfp8 mxfp8:scale_rule=floor
mxfp8:enable_2d_quantization=true mxfp8:flavour=torchao,enable_2d_quantization=true mxfp6 mxfp4 nvfp4
nvfp4:disable_rht=true nvfp4:disable_2d_quantization=true nvfp4:flavour=torchao nvfp4:flavour=modelopt""".split()  # noqa: SIM905
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def matrix(rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.float32]:
    """Rows of very different size, some zeros, more fractional bits than BF16 has."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)) * 4.0 ** rng.integers(-3, 4, (rows, 1))
    values[rng.random(values.shape) < 0.02] = 0
    return values.astype(np.float32)


def take(
    whole: torch.Tensor,
    tensor: str,
    orientation: str,
    recipe: str,
    gemm_dtype: torch.dtype | None = None,
    amax: float = 3.0,
) -> Operand:
    facts = Facts(0, [], amax, 0.0)
    tiles = tiles_of([parse_recipe(recipe)], tensor)
    return take_operand(whole, tensor, gemm_dtype or whole.dtype, facts, tiles, orientation)


def bits(x: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    return np.where(np.isnan(x), np.float32(np.nan), x).view(np.uint32)


@pytest.mark.parametrize("tensor", ["x", "w", "dy"])
@pytest.mark.parametrize("recipe", BLOCKS)
def test_as_part_of_the_whole(recipe: str, tensor: str) -> None:
    parsed = parse_recipe(recipe)
    assert isinstance(parsed, BlockRecipe)
    for shape in ((200, 333), (20, 16), (129, 1)):
        whole = torch.from_numpy(matrix(*shape)).bfloat16()
        for orientation in ("row", "column"):
            operand = take(whole, tensor, orientation, recipe)
            reference = oriented(whole.float().numpy(), orientation)
            amax = 3.0
            if parsed.rotates(tensor, orientation):
                reference = rotate(reference)
                amax = float(abs(reference[operand.lines.numbers()]).max())
            for fmt, _ in parsed.formats_for(tensor):
                expected = quantize_blocks(reference, parsed, tensor, fmt, amax).values[operand.lines.numbers()]
                np.testing.assert_array_equal(bits(quantized(operand, parsed, fmt, None).values), bits(expected))


@pytest.mark.parametrize("gemm_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype, gemm_dtype: torch.dtype) -> None:
    """What is quantised is what the GEMM reads, and so is what it is compared with."""
    whole = torch.from_numpy(matrix(300, 150).astype(np.float64) * (1 + 2.0**-40)).to(dtype)
    read = whole.to(gemm_dtype)
    for recipe in ("block", "mxfp8:enable_2d_quantization=true"):
        parsed = parse_recipe(recipe)
        assert isinstance(parsed, BlockRecipe)
        for orientation in ("row", "column"):
            operand = take(whole, "w", orientation, recipe, gemm_dtype)
            lines = operand.lines.numbers()
            assert operand.sample.dtype == gemm_dtype
            by_line = read.double().numpy() if orientation == "row" else read.double().numpy().T
            np.testing.assert_array_equal(operand.exact, by_line[lines])
            values = quantize_blocks(by_line.astype(np.float32), parsed, "w", E5M2).values[lines]
            np.testing.assert_array_equal(quantized(operand, parsed, E5M2, None).values, values)


@pytest.mark.parametrize("recipe", BLOCKS)
def test_not_finite(recipe: str) -> None:
    """NaN touches as many neighbours as the recipe says, Inf gives its scale, from beside a sample too."""
    parsed = parse_recipe(recipe)
    assert isinstance(parsed, BlockRecipe)
    fmt, _ = parsed.formats_for("w")[0]
    whole = matrix(300, 300)
    whole[[0, 5, 12, 127, 135], [0, 3, 40, 128, 200]] = [np.nan, np.inf, np.nan, -np.inf, np.nan]
    whole[140:150, 64:80] = np.nan
    for orientation in ("row", "column"):
        operand = take(torch.from_numpy(whole), "w", orientation, recipe)
        expected = quantize_blocks(oriented(whole, orientation), parsed, "w", fmt, 3.0).values[operand.lines.numbers()]
        got = quantized(operand, parsed, fmt, None).values
        finite = np.isfinite(operand.values)  # a format without NaN has a code for it all the same, which no sum sees
        np.testing.assert_array_equal(bits(got[finite]), bits(expected[finite]))


def test_per_tensor_recipes_and_alternates() -> None:
    whole = torch.from_numpy(matrix(50, 40)).bfloat16()
    current, delayed, coat = parse_recipe("current"), parse_recipe("delayed"), parse_recipe("coat:k=2")
    one, half = np.float32(1), np.float32(0.5)
    fmts = current.formats_for("dy")
    scales = [InForce(r, fmt, alternate, s) for r, s in ((current, half), (delayed, None)) for fmt, alternate in fmts]
    operand = take_operand(whole, "dy", torch.bfloat16, Facts(0, scales, 7.0, 2.0**-9), [], "row")
    values = whole.float().numpy()[operand.lines.numbers()]
    assert operand.formats(current) == [(fmt, alternate, half) for fmt, alternate in fmts]
    assert operand.formats(delayed) == [], "history incomplete"
    assert operand.formats(coat) == [(fmt, alternate, None) for fmt, alternate in fmts]
    for scale in (one, half):
        np.testing.assert_array_equal(
            quantized(operand, current, E5M2, scale).values, scaled_cast(values, scale, E5M2)[0]
        )
    (expanded, _) = coat.round(values, 7.0, 2.0**-9, E5M2)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(quantized(operand, coat, E5M2, None).values, expanded)


def test_stochastic_rounding_draws_the_same_each_time() -> None:
    state = np.random.get_state(legacy=False)
    recipe = parse_recipe("nvfp4:stochastic_rounding=true")
    operand = take(torch.from_numpy(matrix(64, 96)), "dy", "row", "nvfp4")
    fmt, _ = recipe.formats_for("dy")[0]
    first, again = (quantized(operand, recipe, fmt, None).values for _ in range(2))
    nearest = quantized(operand, parse_recipe("nvfp4"), fmt, None).values
    np.testing.assert_array_equal(first, again)
    assert 0 < np.mean(first != nearest) < 0.5
    assert np.random.get_state(legacy=False)["state"]["pos"] == state["state"]["pos"]


def test_only_copies_are_taken() -> None:
    for whole in (torch.ones(8, 8), torch.ones(1, 8), torch.ones(8, 1), torch.ones(300, 200)):
        for tensor in ("x", "w"):
            for orientation in ("row", "column"):
                operand = take(whole, tensor, orientation, "block")
                assert operand.sample.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
                assert operand.sample.untyped_storage().nbytes() == operand.sample.nbytes
                assert operand.n_bytes == operand.sample.nbytes + sum(a.nbytes for a in operand.tile_amaxes.values())


def test_thinned() -> None:
    operand = take(torch.from_numpy(matrix(300, 200)), "w", "row", "block")
    assert operand.lines.text == "0:10,128:138,256:266 of 300"
    assert operand.thinned(32).lines == operand.lines
    fewer = operand.thinned(16)
    assert fewer.lines.text == "0:9:2,128:137:2,256:265:2 of 300"
    np.testing.assert_array_equal(fewer.values, operand.values[::2])
    (amaxes,) = operand.tile_amaxes.values()
    (fewer_amaxes,) = fewer.tile_amaxes.values()
    np.testing.assert_array_equal(fewer_amaxes, amaxes[::2])
