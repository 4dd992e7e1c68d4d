"""Geometry of blocks, their properties under every recipe, and the Hadamard transform."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fp8debug.blocks import block_amax, oriented, quantize_blocks, rotate, spread
from fp8debug.formats import E2M1, E4M3, E5M2, ELEMENT_FORMATS, Format
from fp8debug.gemms import GEMMS, gemm_of, gemms_reading
from fp8debug.recipes import MXFP8, NVFP4, BlockRecipe, BlockScaling, RowWise, Tile, e8m0_scales, parse_recipe

Float32Array = npt.NDArray[np.float32]

POWER_OF_TWO = (
    *(
        "rowwise",
        "block",
        "block:flavour=deepgemm",
        "block:flavour=deepseek",
        "mxfp6",
        "mxfp6:fp8_format=E3M2",
        "mxfp4",
    ),
    *(f"mxfp8:scale_rule={rule}" for rule in ("rceil", "floor", "ceil", "even")),
    *("mxfp8:fp8_format=E5M2", "mxfp8:enable_2d_quantization=true", "mxfp4:scale_rule=floor"),
)
OTHERS = (
    *("rowwise:power_of_two=false", "block:power_of_two=false", "block:power_of_two=false,flavour=deepgemm"),
    *("block:power_of_two=false,flavour=deepseek", "nvfp4", "nvfp4:flavour=torchao", "nvfp4:flavour=modelopt"),
)


def block_recipe(text: str) -> BlockRecipe:
    recipe = parse_recipe(text)
    assert isinstance(recipe, BlockRecipe)
    return recipe


def f32(values: object) -> Float32Array:
    return np.array(values, dtype=np.float32)


def normal(shape: tuple[int, int], seed: int) -> Float32Array:
    """Normal values whose rows and columns have sizes of their own."""
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.integers(-4, 5, (shape[0], 1)) + rng.integers(-4, 5, (1, shape[1])))
    return f32(rng.standard_normal(shape) * sizes)


recipes = st.sampled_from(POWER_OF_TWO + OTHERS).map(block_recipe)
shapes = st.tuples(st.integers(0, 70), st.integers(0, 150))
seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=60)  # no deadline: a busy machine is no failure
@given(recipe=recipes, tensor=st.sampled_from(["x", "w"]), shape=shapes, seed=seeds)
def test_a_partial_block_is_a_block_filled_up_with_zeros(
    recipe: BlockRecipe, tensor: str, shape: tuple[int, int], seed: int
) -> None:
    x = normal(shape, seed)
    (fmt, _), tile = recipe.formats_for(tensor)[0], recipe.tile(tensor)
    width = tile.length or max(shape[1], 1)
    full = np.zeros((math.ceil(shape[0] / tile.lines) * tile.lines, math.ceil(shape[1] / width) * width), np.float32)
    full[: shape[0], : shape[1]] = x
    got, expected = (quantize_blocks(tensor_, recipe, tensor, fmt) for tensor_ in (x, full))
    np.testing.assert_array_equal(got.factors.decode, expected.factors.decode)
    np.testing.assert_array_equal(got.values, expected.values[: shape[0], : shape[1]])
    assert got.codes.shape == got.values.shape == got.beyond.shape == shape


@settings(deadline=None, max_examples=30)
@given(recipe=recipes, shape=shapes, seed=seeds)
def test_columns_of_a_tensor_are_rows_of_its_transpose(recipe: BlockRecipe, shape: tuple[int, int], seed: int) -> None:
    x = normal(shape, seed)
    fmt, _ = recipe.formats_for("x")[0]
    by_column = quantize_blocks(oriented(x, "column"), recipe, "x", fmt)
    by_row = quantize_blocks(oriented(x.T.copy(), "row"), recipe, "x", fmt)
    assert by_column.codes.tobytes() == by_row.codes.tobytes()
    if recipe.tile("w").lines > 1:  # square tiles: the transpose has the same scales
        by_row, by_column = (quantize_blocks(oriented(x, o), recipe, "w", fmt) for o in ("row", "column"))
        np.testing.assert_array_equal(by_column.values, by_row.values.T)


@settings(deadline=None, max_examples=40)
@given(recipe=recipes, tensor=st.sampled_from(["x", "w"]), seed=seeds, power=st.integers(-20, 20))
def test_a_power_of_two_on_the_tensor_is_one_on_the_result(
    recipe: BlockRecipe, tensor: str, seed: int, power: int
) -> None:
    """Deviations come from bounds alone (subnormal scales, amaxes below 1e-4): these inputs are far from them."""
    x, factor = f32(np.clip(np.abs(normal((20, 70), seed)), 2.0**-6, None) * 1024), np.float32(2.0**power)
    fmt, _ = recipe.formats_for(tensor)[0]
    one, other = quantize_blocks(x, recipe, tensor, fmt), quantize_blocks(x * factor, recipe, tensor, fmt)
    np.testing.assert_array_equal(other.codes, one.codes)
    np.testing.assert_array_equal(other.values, one.values * factor)


@settings(deadline=None, max_examples=40)
@given(recipe=st.sampled_from(POWER_OF_TWO).map(block_recipe), tensor=st.sampled_from(["x", "w"]), seed=seeds)
def test_quantising_twice_changes_nothing_when_scales_are_powers_of_two(
    recipe: BlockRecipe, tensor: str, seed: int
) -> None:
    fmt, _ = recipe.formats_for(tensor)[0]
    once = quantize_blocks(normal((33, 70), seed), recipe, tensor, fmt).values
    np.testing.assert_array_equal(quantize_blocks(once, recipe, tensor, fmt).values, once)


@settings(deadline=None, max_examples=30)
@given(fmt=st.sampled_from(sorted(ELEMENT_FORMATS.values(), key=lambda f: f.name)), seed=seeds)
def test_round_up_never_saturates_and_floor_does_above_the_largest_significand(fmt: Format, seed: int) -> None:
    bits = np.random.default_rng(seed).integers(0x08000000, 0x70000000, 500, dtype=np.uint32)
    amax = bits.view(np.float32)
    assert (amax / e8m0_scales(amax, fmt, "rceil") <= fmt.max).all()
    significand = 2 * np.frexp(amax)[0]
    saturates = amax / e8m0_scales(amax, fmt, "floor") > fmt.max
    np.testing.assert_array_equal(saturates, significand > 2 * math.frexp(fmt.max)[0])


def exact_exponent(amax: Fraction, fmt: Format, rule: str) -> int:
    """The scale's exponent by its definition, in rationals."""
    exponent = 0
    while amax >= 2 * Fraction(2) ** exponent:
        exponent += 1
    while amax < Fraction(2) ** exponent:
        exponent -= 1
    significand = amax / Fraction(2) ** exponent
    largest, largest_exponent = math.frexp(fmt.max)
    rounds_up = {
        "floor": False,
        "rceil": significand > 2 * Fraction(largest),
        "ceil": significand > 1,
        "even": significand >= 2 - Fraction(1, 2 ** (fmt.mantissa_bits + 1)),
    }
    return exponent - (largest_exponent - 1) + rounds_up[rule]


@settings(deadline=None)
@given(
    bits=st.integers(1, 0x7F7FFFFF),
    near=st.integers(-2, 2),
    fmt=st.sampled_from(sorted(ELEMENT_FORMATS.values(), key=lambda f: f.name)),
    rule=st.sampled_from(["rceil", "floor", "ceil", "even"]),
    at_threshold=st.booleans(),
)
def test_scales_are_those_of_the_rules_in_exact_arithmetic(
    bits: int, near: int, fmt: Format, rule: str, at_threshold: bool
) -> None:
    if at_threshold:  # the first three significand bits of the thresholds, and their neighbours
        bits = min(max((bits & 0x7FF80000) + near, 1), 0x7F7FFFFF)
    amax = np.array([bits], dtype=np.uint32).view(np.float32)
    exponent = exact_exponent(Fraction(float(amax[0])), fmt, rule)
    assert e8m0_scales(amax, fmt, rule).tolist() == [2.0 ** min(max(exponent, -127), 127)]


def test_blocks_with_nan_follow_their_upstream() -> None:
    """Transformer Engine's maxima pass over NaN, torch's do not: one element, or all of its block."""
    x = f32(np.linspace(-3, 3, 256)).reshape(2, 128)
    x[0, 5] = np.nan
    clean = np.where(np.isnan(x), np.float32(0), x)
    for text in ("mxfp8", "block", "block:flavour=deepseek,power_of_two=false"):
        recipe = block_recipe(text)
        got, expected = (quantize_blocks(tensor, recipe, "x", E4M3) for tensor in (x, clean))
        assert np.isnan(got.values).sum() == 1
        np.testing.assert_array_equal(got.values[~np.isnan(x)], expected.values[~np.isnan(x)])
    for text, size in (("mxfp8:flavour=torchao", 32), ("block:flavour=deepgemm", 128), ("rowwise", 128)):
        values = quantize_blocks(x, block_recipe(text), "x", E4M3).values
        assert np.isnan(values).sum() == np.isnan(values[0, :size]).sum() == size


def test_blocks_with_infinity_saturate() -> None:
    x = f32([[np.inf, 1.0] * 16, [-1.0, 3.0] * 16])
    mx = quantize_blocks(x, MXFP8(), "x", E4M3)
    assert mx.factors.decode.ravel().tolist() == [2.0**127, 2.0**-7]
    assert (mx.values[0, :2].tolist(), mx.beyond[0, :2].tolist()) == ([np.inf, 0.0], [True, False])  # 448 * 2^127
    block = quantize_blocks(x, BlockScaling(), "x", E4M3)  # scale 1, as for an amax of 0
    assert (block.factors.encode[0, 0], block.values[0, :2].tolist()) == (1, [448.0, 1.0])
    nv = quantize_blocks(x, NVFP4(), "x", E2M1)  # S_enc 1, largest block scale
    assert nv.codes[0, :2].tolist() == [7, 0]


def test_zeros_stay_zeros_under_every_recipe_that_has_a_scale_for_them() -> None:
    x = f32([[0.0, -0.0] * 40])
    for text in POWER_OF_TWO + OTHERS:
        recipe = block_recipe(text)
        fmt, _ = recipe.formats_for("x")[0]
        values = quantize_blocks(x, recipe, "x", fmt).values
        divides_zero = isinstance(recipe, NVFP4) and recipe.flavour != "te"
        assert np.isnan(values).all() if divides_zero else (values == 0).all(), text


def te_nvfp4(block_amax: np.float32, tensor_amax: np.float32) -> tuple[np.float32, np.float32]:
    """Encode and decode factor of one block, step by step as core_nvfp4.cuh and dequantize_nvfp4.cuh take them."""
    one, six = np.float32(1), np.float32(6)
    tensor_scale = np.float32(448 * 6) / tensor_amax
    scale = np.float32((block_amax * (tensor_scale * (one / six))).astype(ml_dtypes.float8_e4m3fn))
    encode = min(one / (scale * (one / tensor_scale)), np.finfo(np.float32).max)
    return encode, scale * tensor_amax * (one / np.float32(448 * 6))


def test_nvfp4_takes_transformer_engines_steps_in_its_order() -> None:
    """Block amaxes whose scale falls on a midpoint of E4M3 or next to it: there the order decides."""
    midpoints = np.arange(17, 32, 2) * np.exp2(np.arange(-8, 4))[:, None]
    shares = f32(midpoints.ravel()) / np.float32(448)
    for tensor_amax in f32(np.random.default_rng(0).lognormal(0, 3, 60)):
        amaxes = tensor_amax * shares
        factors = NVFP4().factors(amaxes, float(tensor_amax), E2M1)
        expected = [te_nvfp4(amax, tensor_amax) for amax in amaxes]
        assert list(zip(factors.encode, factors.decode, strict=True)) == expected


def test_the_lowest_nvfp4_block_scale_is_the_flavours() -> None:
    amaxes = f32([0.0, 1e-6, 6.0])
    scales = {f: NVFP4(flavour=f).block_scales(amaxes, 6.0).tolist() for f in ("te", "torchao", "modelopt")}
    assert scales == {"te": [0, 0, 448], "torchao": [2.0**-6, 2.0**-6, 448], "modelopt": [1, 2.0**-9, 448]}


def test_float32_scales_of_transformer_engine_end_at_the_largest_bf16() -> None:
    amaxes = f32([2.0**-130, 1.0])
    assert BlockScaling(power_of_two=False).factors(amaxes, 1.0, E4M3).encode.tolist() == [
        (2 - 2.0**-7) * 2.0**127,
        448,
    ]
    assert BlockScaling().factors(amaxes, 1.0, E4M3).encode.tolist() == [2.0**127, 256]


def test_square_blocks_are_for_weights() -> None:
    for recipe, side in ((MXFP8(enable_2d_quantization=True), 32), (BlockScaling(), 128)):
        assert [recipe.tile(t) for t in ("x", "w", "dy")] == [Tile(1, side), Tile(side, side), Tile(1, side)]
    assert MXFP8().tile("w") == Tile(1, 32)
    assert RowWise().tile("w") == Tile(1, None)


@pytest.mark.parametrize(
    ("tile", "expected"),
    [
        (Tile(1, 2), [[2, 3, 5], [7, 9, 10]]),
        (Tile(2, 2), [[7, 9, 10]]),
        (Tile(1, None), [[5], [10]]),
        (Tile(128, 128), [[10]]),
    ],
)
def test_amax_of_tiles_and_back(tile: Tile, expected: list[list[float]]) -> None:
    x = f32([[1, -2, 3, 0, 5], [6, -7, 8, 9, -10]])
    amax = block_amax(x, tile)
    assert amax.tolist() == expected
    back = spread(amax, tile, (2, 5))
    assert back.shape == (2, 5)
    assert (back >= np.abs(x)).all()
    assert set(back.ravel().tolist()) == set(amax.ravel().tolist())


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0, 0)])
def test_empty_tensors_have_no_blocks_or_no_elements(shape: tuple[int, int]) -> None:
    x = np.empty(shape, np.float32)
    for text in POWER_OF_TWO + OTHERS:
        recipe = block_recipe(text)
        fmt, _ = recipe.formats_for("w")[0]
        blocks = quantize_blocks(x, recipe, "w", fmt)
        assert blocks.values.shape == shape
        assert blocks.factors.encode.size == 0
    assert rotate(x).shape == shape


def test_every_gemm_contracts_the_last_axis_of_both_operands() -> None:
    tokens, k, n = 5, 7, 3
    rng = np.random.default_rng(0)
    matrices = {
        tensor: f32(rng.integers(-9, 10, shape))
        for tensor, shape in (("x", (tokens, k)), ("w", (n, k)), ("dy", (tokens, n)))
    }
    results = {"fprop": ("x", "w"), "dgrad": ("dy", "w"), "wgrad": ("dy", "x")}
    expected = {
        "fprop": matrices["x"] @ matrices["w"].T,
        "dgrad": matrices["dy"] @ matrices["w"],
        "wgrad": matrices["dy"].T @ matrices["x"],
    }
    for gemm, operands in GEMMS.items():
        assert tuple(tensor for tensor, _ in operands) == results[gemm]
        a, b = (oriented(matrices[tensor], orientation) for tensor, orientation in operands)
        np.testing.assert_array_equal(a @ b.T, expected[gemm])
        assert all(gemm_of(*operand) == gemm for operand in operands)
    assert [gemms_reading(tensor) for tensor in ("x", "dy", "y")] == [("fprop", "wgrad"), ("dgrad", "wgrad"), ()]
    with pytest.raises(ValueError, match="no GEMM reads y by row"):
        gemm_of("y", "row")


SIGNS = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]


def to_bf16(values: npt.NDArray[np.float64]) -> Float32Array:
    return values.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)


def test_rotation_is_the_signed_hadamard_matrix_rounded_to_bf16() -> None:
    hadamard = np.array([[(-1) ** (i & j).bit_count() for j in range(16)] for i in range(16)])
    x = to_bf16(np.random.default_rng(0).standard_normal((6, 48)))
    expected = to_bf16((x.astype(np.float64).reshape(-1, 16) @ (np.diag(SIGNS) @ hadamard / 4)).reshape(6, 48))
    assert rotate(x).tobytes() == expected.tobytes()
    assert rotate(np.eye(16, dtype=np.float32)[3:4])[0].tolist() == (-hadamard[3] / 4).tolist()


@settings(deadline=None, max_examples=30)
@given(seed=seeds, shape=st.tuples(st.integers(1, 9), st.integers(1, 70)))
def test_rotation_keeps_norms_and_products_to_bf16_rounding(seed: int, shape: tuple[int, int]) -> None:
    a, b = to_bf16(normal(shape, seed).astype(np.float64)), to_bf16(normal(shape, seed + 1).astype(np.float64))
    rotated, other = rotate(a), rotate(b)
    norms, lengths = np.linalg.norm(rotated, axis=1), np.linalg.norm(a, axis=1)
    np.testing.assert_allclose(norms, lengths, rtol=2**-8)
    bound = 2**-7 * np.outer(lengths, np.linalg.norm(b, axis=1))
    assert (np.abs(rotated @ other.T - a @ b.T) <= bound).all()
    whole = shape[1] // 16 * 16
    np.testing.assert_array_equal(rotated[:, whole:], a[:, whole:])  # a shorter last chunk


def test_who_is_rotated_tiled_and_rounded_stochastically_under_nvfp4() -> None:
    te = NVFP4(stochastic_rounding=True)
    rotated = [(t, o) for t in ("x", "w", "dy") for o in ("row", "column") if te.rotates(t, o)]
    assert rotated == [("x", "column"), ("dy", "column")]
    assert [te.tile(tensor) for tensor in ("x", "w", "dy")] == [Tile(1, 16), Tile(16, 16), Tile(1, 16)]
    assert [te.rounds_stochastically(tensor) for tensor in ("x", "w", "dy")] == [False, False, True]
    for plain in (NVFP4(flavour="torchao"), NVFP4(disable_rht=True, disable_2d_quantization=True)):
        assert not any(plain.rotates(t, o) for t in ("x", "w", "dy") for o in ("row", "column"))
        assert plain.tile("w") == Tile(1, 16)
        assert not plain.rounds_stochastically("dy")


def test_stochastic_rounding_needs_a_generator_and_is_right_in_the_mean() -> None:
    recipe = NVFP4(stochastic_rounding=True)
    x = np.tile(f32([6.0, 2.25] + [0.0] * 14), (4000, 1))
    with pytest.raises(ValueError, match="rounds dy stochastically"):
        quantize_blocks(x, recipe, "dy", E2M1)
    values = quantize_blocks(x, recipe, "dy", E2M1, rng=np.random.default_rng(0)).values[:, 1]
    assert sorted(set(values.tolist())) == [2.0, 3.0]
    assert values.mean() == pytest.approx(2.25, abs=5 * 0.433 / math.sqrt(4000))  # a coin of 1/4, five sigma
    assert set(quantize_blocks(x, recipe, "x", E2M1).values[:, 1].tolist()) == {2.0}


def test_a_part_of_a_tensor_is_scaled_with_the_amax_of_the_whole() -> None:
    x = normal((4, 64), 3)
    whole = quantize_blocks(x, NVFP4(), "x", E2M1)
    part = quantize_blocks(x[:1], NVFP4(), "x", E2M1, tensor_amax=float(np.abs(x).max()))
    assert part.values.tobytes() == whole.values[:1].tobytes()


def test_overflow_is_asked_before_the_clamp() -> None:
    x = f32([[255.0 * 2] * 32, [256.0] * 32])  # scale 1 under floor for both
    blocks = quantize_blocks(x, MXFP8(scale_rule="floor"), "x", E4M3)
    assert blocks.beyond.all(axis=1).tolist() == [True, False]
    assert blocks.values[:, 0].tolist() == [448.0, 256.0]


@pytest.mark.parametrize("bad", [np.zeros((2, 2)), np.zeros(4, np.float32)])
def test_only_float32_matrices_are_taken(bad: npt.NDArray[np.float32]) -> None:
    with pytest.raises(TypeError, match="expected a float32 matrix"):
        quantize_blocks(bad, RowWise(), "x", E5M2)
