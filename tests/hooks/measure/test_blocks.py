"""What block scaling loses, by both engines, against sums over the core's reference, block by block in Python."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fp8debug.blocks import oriented, quantize_blocks, rotate
from fp8debug.formats import Format
from fp8debug.hooks.measure import Engine, load_engine
from fp8debug.hooks.measure.blocks import BlockMeter, BlockSummary
from fp8debug.hooks.measure.strips import as_matrix, sample_of
from fp8debug.recipes import BlockRecipe, parse_recipe

ENGINES = {name: load_engine(name) for name in ("numba", "torch")}
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
RECIPES = (
    "rowwise", "block", "block:power_of_two=false", "block:power_of_two=false,flavour=deepseek", "mxfp8",
    "mxfp8:scale_rule=floor", "mxfp8:fp8_format=HYBRID,scale_rule=even,flavour=torchao",
    "mxfp8:enable_2d_quantization=true", "mxfp6", "mxfp4", "nvfp4", "nvfp4:disable_rht=true", "nvfp4:flavour=torchao",
    "nvfp4:flavour=modelopt",
)  # fmt: skip


def recipe_of(text: str) -> BlockRecipe:
    recipe = parse_recipe(text)
    assert isinstance(recipe, BlockRecipe)
    return recipe


def awkward(dtype: torch.dtype) -> torch.Tensor:
    """(150, 70): partial blocks both ways, two strips one way, NaN, Inf, blocks of zeros, tiny and large values."""
    g = torch.Generator().manual_seed(2)
    t = torch.randn(150, 70, generator=g) * torch.exp(torch.randn(150, 1, generator=g))
    t[20:60, 30:70] = 0
    t[130:, :] *= 2.0**-20
    t[:, 3] *= 1000
    t[4, 5], t[70, 64] = torch.nan, -torch.inf
    return t.to(dtype)


def amax_of(t: torch.Tensor) -> float:
    return float(t.float().abs().nan_to_num(0, 0, 0).max())


def measured(
    engine: Engine, recipe: BlockRecipe, tensor: str, orientation: str, fmt: Format, t: torch.Tensor,
    budget: int = 1 << 30,
) -> BlockSummary:  # fmt: skip
    matrix = as_matrix(t)
    meter = BlockMeter(engine, recipe, tensor, orientation, fmt, amax_of(t), np.random.default_rng(5))
    for strip in sample_of(matrix, orientation, budget).strips(matrix, t.dtype):
        meter.add(strip)
    return meter.summary()


def expected_summary(recipe: BlockRecipe, tensor: str, orientation: str, fmt: Format, t: torch.Tensor) -> BlockSummary:
    """From the dequantised values, one block after the other; non-finite blocks are found by looking."""
    x = read = oriented(t.float().numpy(), orientation)
    tensor_amax = amax_of(t)
    if recipe.rotates(tensor, orientation):
        read, x = rotate(x), rotate(x, rounded=False)
        tensor_amax = float(np.abs(read[np.isfinite(read)]).max())
    quantized = quantize_blocks(read, recipe, tensor, fmt, tensor_amax)
    factors, tile = quantized.factors, recipe.tile(tensor)
    height, width = tile.lines, tile.length or x.shape[1]
    found, scales = BlockSummary(), []
    worst = math.inf
    for index in range(factors.encode.size):
        row, column = divmod(index, factors.encode.shape[1])
        here = np.s_[row * height : (row + 1) * height, column * width : (column + 1) * width]
        found.n_blocks += 1
        if not np.isfinite(read[here]).all():
            found.n_nonfinite_blocks += 1
            continue
        found.n += x[here].size
        if not read[here].any():
            found.n_zero_blocks += 1
            continue
        encode = factors.encode[row, column]
        scales.append(np.float32(1) / encode if factors.divides else encode)
        v, q = x[here].astype(np.float64), quantized.values[here].astype(np.float64)
        found.n_nonzero += int((v != 0).sum())
        found.n_underflow += int(((v != 0) & (q == 0)).sum())
        found.n_overflow += int(quantized.beyond[here].sum())
        found.n_saturated_blocks += bool(quantized.beyond[here].any())
        x2, err2 = math.fsum((v**2).flat), math.fsum(((v - q) ** 2).flat)
        found.sum_x2 += x2
        found.sum_err2 += err2
        found.sum_q2 += math.fsum((q**2).flat)
        found.sum_xq += math.fsum((v * q).flat)
        if err2 and x2 / err2 < worst:
            worst = x2 / err2
            found.worst_block, found.worst_block_sqnr_db = index, 10 * math.log10(worst)
    if scales:
        found.scale_min, found.scale_max = float(min(scales)), float(max(scales))
        found.scale_median = float(np.float32(statistics.median(map(float, scales))))
    return found


def assert_same(got: BlockSummary, expected: BlockSummary) -> None:
    """Counts and scales equal, sums to 1e-12."""
    for field in dataclasses.fields(BlockSummary):
        a, b = getattr(got, field.name), getattr(expected, field.name)
        if field.name.startswith("sum_") or (field.name == "worst_block_sqnr_db" and b is not None):
            assert a == pytest.approx(b, rel=1e-12), field.name
        else:
            assert a == b, field.name


@pytest.mark.parametrize("engine", ["numba", "torch"])
@pytest.mark.parametrize("text", RECIPES)
def test_sums_are_those_of_the_reference(text: str, engine: str) -> None:
    recipe = recipe_of(text)
    for dtype, operands in ((BF16, ("x", "w", "dy")), (FP16, ("w",)), (FP32, ("x",))):
        t = awkward(dtype)
        for tensor in operands:
            for orientation in ("row", "column"):
                for fmt, _ in recipe.formats_for(tensor):
                    got = measured(ENGINES[engine], recipe, tensor, orientation, fmt, t)
                    assert_same(got, expected_summary(recipe, tensor, orientation, fmt, t))


@pytest.mark.parametrize("text", RECIPES)
def test_engines_agree_on_any_bits(text: str) -> None:
    """Random FP32 patterns: subnormals, the largest numbers, factors that overflow; infinite sums on both sides."""
    bits = np.random.default_rng(3).integers(0, 1 << 32, (128, 96), dtype=np.uint32)
    bits[(bits & 0x7F800000) == 0x7F800000] &= 0xFF000000  # a NaN in each line would leave nothing to compare
    t = torch.from_numpy(bits.view(np.float32))
    recipe = recipe_of(text)
    for tensor in ("x", "w"):
        fmt = recipe.formats_for(tensor)[0][0]
        got, expected = (dataclasses.astuple(measured(e, recipe, tensor, "row", fmt, t)) for e in ENGINES.values())
        np.testing.assert_allclose(np.array(got, float), np.array(expected, float), rtol=1e-12)  # None is NaN


@pytest.mark.parametrize("engine", ["numba", "torch"])
def test_a_block_that_floor_saturates(engine: str) -> None:
    """amax 500: floor takes 2^0, 500 becomes 448 and overflows; round-up takes 2^1, 500 becomes 2 * 256 and not."""
    t = torch.tensor([[500.0] + [1.0] * 31, [2.0] * 32], dtype=BF16)
    floor = measured(ENGINES[engine], recipe_of("mxfp8:scale_rule=floor"), "x", "row", fmt_of("mxfp8"), t)
    assert (floor.n_overflow, floor.n_saturated_blocks, floor.sum_err2) == (1, 1, 52.0**2)
    assert floor.worst_block == 0
    assert floor.worst_block_sqnr_db == pytest.approx(10 * math.log10(250031 / 52**2))
    assert (floor.scale_min, floor.scale_median, floor.scale_max) == (1.0, 64.5, 128.0)
    up = measured(ENGINES[engine], recipe_of("mxfp8"), "x", "row", fmt_of("mxfp8"), t)
    assert (up.n_overflow, up.n_saturated_blocks, up.sum_err2) == (0, 0, 12.0**2)
    assert (up.scale_min, up.scale_max) == (0.5, 128.0)


def fmt_of(text: str) -> Format:
    return recipe_of(text).formats_for("x")[0][0]


@pytest.mark.parametrize("engine", ["numba", "torch"])
def test_nothing_lost_and_nothing_there(engine: str) -> None:
    exact = measured(ENGINES[engine], recipe_of("mxfp8"), "x", "row", fmt_of("mxfp8"), torch.ones(2, 40, dtype=BF16))
    assert (exact.n, exact.n_blocks, exact.sum_err2, exact.worst_block, exact.worst_block_sqnr_db) == (
        80,
        4,
        0,
        None,
        None,
    )
    for text in RECIPES:
        zeros = measured(ENGINES[engine], recipe_of(text), "x", "row", fmt_of(text), torch.zeros(2, 40))
        n = zeros.n_blocks
        assert zeros == BlockSummary(n=80, n_blocks=n, n_zero_blocks=n), text
        nans = measured(ENGINES[engine], recipe_of(text), "x", "row", fmt_of(text), torch.full((2, 40), torch.nan))
        assert nans == BlockSummary(n_blocks=n, n_nonfinite_blocks=n), text


def test_stochastic_rounding_is_seeded_and_unbiased() -> None:
    """Halfway between 1 and 1.5 half go up; the same generator gives the same sums, torch's is left alone."""
    recipe = recipe_of("nvfp4:stochastic_rounding=true")
    t = torch.full((64, 64), 1.25)
    t[:, ::16] = 6
    state = torch.get_rng_state()
    first, again = (measured(e, recipe, "dy", "row", fmt_of("nvfp4"), t) for e in ENGINES.values())
    assert first == again
    assert torch.equal(torch.get_rng_state(), state)
    n = 64 * 60
    assert first.sum_err2 == pytest.approx(n * 0.25**2, rel=1e-6)
    ups = (first.sum_xq - 64 * 4 * 36 - n * 1.25) / (1.25 * 0.5)  # each adds 0.5 to its q
    assert abs(ups - n / 2) < 4 * math.sqrt(n) / 2


@pytest.fixture(scope="module")
def trained() -> dict[str, torch.Tensor]:
    """x, w and dy of the second layer of a small language model after a few steps, 512 hidden features."""
    torch.manual_seed(0)
    ids = (torch.rand(2049) ** 4 * 64).long()  # common and rare words
    layer = torch.nn.Linear(512, 256)
    model = torch.nn.Sequential(
        torch.nn.Embedding(64, 128), torch.nn.LayerNorm(128), torch.nn.Linear(128, 512), torch.nn.GELU(),
        layer, torch.nn.ReLU(), torch.nn.Linear(256, 64),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    seen: dict[str, torch.Tensor] = {}

    def watch(module: torch.nn.Module, args: tuple[torch.Tensor, ...], y: torch.Tensor) -> None:
        seen.update(x=args[0].detach(), w=layer.weight.detach().clone())
        y.register_hook(lambda g: seen.update(dy=g))

    layer.register_forward_hook(watch)
    for _ in range(8):
        torch.nn.functional.cross_entropy(model(ids[:-1]), ids[1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {name: t.to(BF16) for name, t in seen.items()}


def gaussian() -> torch.Tensor:
    return torch.randn(2048, 512, generator=torch.Generator().manual_seed(1)).to(BF16)


def with_outliers() -> torch.Tensor:
    """Every 64th channel is 60 times larger."""
    t = torch.randn(2048, 512, generator=torch.Generator().manual_seed(1))
    t[:, ::64] *= 60
    return t.to(BF16)


@pytest.mark.parametrize(
    ("data", "within_db"), [("gaussian", 0.1), ("outliers", 0.8), ("x", 0.8), ("w", 0.8), ("dy", 0.8)]
)
def test_a_few_strips_tell_what_the_whole_would(data: str, within_db: float, trained: dict[str, torch.Tensor]) -> None:
    t = {"gaussian": gaussian, "outliers": with_outliers}.get(data, lambda: trained[data])()
    tensor = data if data in trained else "x"
    for text in ("mxfp8", "mxfp8:scale_rule=floor", "block", "nvfp4"):
        recipe = recipe_of(text)
        fmt = recipe.formats_for(tensor)[0][0]
        for orientation in ("row", "column"):
            whole, sample = (
                measured(ENGINES["numba"], recipe, tensor, orientation, fmt, t, budget)
                for budget in (t.numel(), t.numel() // 8)
            )
            assert sample.n < whole.n == t.numel()
            a, b = (10 * math.log10(found.sum_x2 / found.sum_err2) for found in (whole, sample))
            assert abs(a - b) < within_db, (text, orientation, a, b)


def test_random_state_and_memory_of_the_tensor_are_left_alone() -> None:
    t = awkward(BF16)
    before: npt.NDArray[np.uint16] = t.view(torch.uint16).numpy().copy()
    measured(ENGINES["numba"], recipe_of("nvfp4"), "x", "column", fmt_of("nvfp4"), t)
    np.testing.assert_array_equal(t.view(torch.uint16).numpy(), before)


@pytest.mark.parametrize("engine", ENGINES)
def test_zeros_are_not_lost_whatever_becomes_of_them(engine: str) -> None:
    """Under torchao's NVFP4 a tensor this small has an infinite factor: 0 * inf saturates, and no zero stays one."""
    t = torch.zeros(4, 32)
    t[0, 0] = 2.0**-120
    recipe = recipe_of("nvfp4:flavour=torchao")
    found = measured(ENGINES[engine], recipe, "x", "row", recipe.formats_for("x")[0][0], t)
    assert (found.n_nonzero, found.n_underflow) == (1, 0)


@pytest.mark.parametrize("engine", ENGINES)
def test_scales_at_the_end_of_float32(engine: str) -> None:
    """Two blocks of the smallest numbers, an even number of scales: their median is one of them."""
    recipe = recipe_of("mxfp8")
    found = measured(ENGINES[engine], recipe, "x", "row", recipe.formats_for("x")[0][0], torch.full((2, 32), 2.0**-140))
    assert found.scale_min == found.scale_median == found.scale_max == 2.0**127
