"""Cells of `gemms` against plain loops, and sampled estimates against whole results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fp8debug.accumulation import hopper_scalar
from fp8debug.blocks import oriented, quantize_blocks, rotate
from fp8debug.formats import E4M3, E5M2, Format, fake_quantize
from fp8debug.gemms import GEMMS
from fp8debug.hooks.probe.operand import take_operand, tiles_of
from fp8debug.hooks.probe.result import gemm_cells
from fp8debug.hooks.recorder import Facts
from fp8debug.hooks.scales import InForce
from fp8debug.recipes import BlockRecipe, Recipe, TensorRecipe, parse_recipe, scale_inv, scaled_cast
from fp8debug.schema import GEMMS as TABLE
from fp8debug.schema import RECORD_KEY

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Matrices = dict[str, F32]
NAMES = TABLE.column_names[len(RECORD_KEY) :]
RECIPES = """current current:power_of_two=true current:flavour=torchao static:scale=0.25 bf16 coat delayed rowwise block
block:fp8_format=HYBRID block:power_of_two=false,flavour=deepgemm mxfp8 mxfp8:scale_rule=floor
mxfp8:enable_2d_quantization=true mxfp6 mxfp4 nvfp4 nvfp4:flavour=torchao nvfp4:disable_rht=true""".split()  # noqa: SIM905
WARM_UP = np.float32(1)


def normal(rng: np.random.Generator, *shape: int) -> F32:
    return rng.standard_normal(shape).astype(np.float32)


def power_of_two(amax: npt.NDArray[np.float32] | np.float32) -> F32:
    """The largest that brings amax to 448 at most."""
    return np.exp2(np.floor(np.log2(np.float32(448) / amax)))


def facts_of(values: F32, tensor: str, recipes: list[Recipe]) -> Facts:
    """What a recorder would say of the whole tensor; delayed scaling is in its first step."""
    finite = abs(values[np.isfinite(values)])
    amax = math.inf if np.isinf(values).any() else float(finite.max())
    scales: list[InForce] = []
    for recipe in recipes:
        for fmt, alternate in recipe.formats_for(tensor):
            if not isinstance(recipe, BlockRecipe):
                scale = recipe.scale(amax, fmt) if isinstance(recipe, TensorRecipe) else WARM_UP
                scales.append(InForce(recipe, fmt, alternate, scale))
    return Facts(0, scales, amax, float(finite[finite > 0].min()))


def probe(
    tensors: Matrices, recipes: list[Recipe], *accumulations: str, dtype: torch.dtype = torch.float32
) -> list[dict[str, Any]]:
    """Rows of `gemms` for one use of a layer."""
    rows = []
    for gemm, names in GEMMS.items():
        first, second = (
            take_operand(
                torch.from_numpy(tensors[name]),
                name,
                dtype,
                facts_of(torch.from_numpy(tensors[name]).to(dtype).float().numpy(), name, recipes),
                tiles_of(recipes, name),
                orientation,
            )
            for name, orientation in names
        )
        rows += [dict(zip(NAMES, c, strict=True)) for c in gemm_cells(gemm, first, second, recipes, accumulations)]
    return rows


def read_by(gemm: str, tensors: Matrices, recipe: Recipe, place: int, fmt: Format) -> F32:
    """A whole operand, quantised."""
    name, orientation = GEMMS[gemm][place]
    x = oriented(tensors[name], orientation)
    facts = facts_of(tensors[name], name, [recipe])
    if isinstance(recipe, BlockRecipe):
        rotates = recipe.rotates(name, orientation)
        return quantize_blocks(rotate(x) if rotates else x, recipe, name, fmt, None if rotates else facts.amax).values
    if isinstance(recipe, TensorRecipe):
        return recipe.round(x, facts.amax, facts.amin, fmt)[0]
    return scaled_cast(x, WARM_UP, fmt)[0]


def loop_sums(a: F32, b: F32, qa: F32, qb: F32) -> dict[str, float]:
    """Every sum by plain loops over rows, columns and depth, each rounded once."""
    terms: dict[str, list[float]] = {name: [] for name in ("sum_y2", "sum_q2", "sum_yq", "sum_err2", "sum_x2w2")}
    for i in range(len(a)):
        for j in range(len(b)):
            products = [float(u) * float(v) for u, v in zip(a[i], b[j], strict=True)]
            y, q = math.fsum(products), math.fsum(float(u) * float(v) for u, v in zip(qa[i], qb[j], strict=True))
            for name, value in zip(terms, (y * y, q * q, y * q, (y - q) ** 2), strict=False):
                terms[name].append(value)
            terms["sum_x2w2"] += [p * p for p in products]
    return {name: math.fsum(values) for name, values in terms.items()}


def small(seed: int = 0) -> Matrices:
    """x (21, 27), w (18, 27), dy (21, 18): no block length divides any of them."""
    rng = np.random.default_rng(seed)
    shapes = {"x": (21, 27), "w": (18, 27), "dy": (21, 18)}
    return {
        name: normal(rng, *shape) * np.exp2(rng.integers(-3, 4, shape).astype(np.float32))
        for name, shape in shapes.items()
    }


@pytest.mark.parametrize("text", RECIPES)
def test_against_loops(text: str) -> None:
    tensors, recipe = small(), parse_recipe(text)
    rows = probe(tensors, [recipe], "exact")
    expected_keys = []
    for gemm, names in GEMMS.items():
        (first, _), (second, _) = names
        for fmt, alternate in recipe.formats_for(first):
            other = recipe.formats_for(second)[0][0]
            expected_keys.append((gemm, text, fmt.name, other.name, alternate, "exact"))
            row = rows[len(expected_keys) - 1]
            a, b = (oriented(tensors[name], orientation) for name, orientation in names)
            qa, qb = (read_by(gemm, tensors, recipe, i, f) for i, f in enumerate((fmt, other)))
            for name, value in loop_sums(a, b, qa, qb).items():
                assert row[name] == pytest.approx(value, rel=1e-12, abs=1e-18), (gemm, name)
            assert (row["n"], row["n_nonfinite"]) == (len(a) * len(b), 0)
            assert (row["n_rows"], row["n_columns"], row["depth"]) == (len(a), len(b), a.shape[1])
            assert row["sample"] == f"rows 0:{len(a)} of {len(a)}, columns 0:{len(b)} of {len(b)}"
    assert [tuple(row[name] for name in NAMES[:6]) for row in rows] == expected_keys


def test_results_that_are_not_finite_are_counted_and_left_out() -> None:
    """NaN in a row of x, Inf in a row of w: those results alone, in y and, where its inverse overflows, in q."""
    tensors, recipe = small(), parse_recipe("static")
    clean = probe(tensors, [recipe], "exact")[0]
    tensors["x"][3, 4] = np.nan
    tensors["w"][5, 6] = np.inf
    row = probe(tensors, [recipe], "exact")[0]
    assert (row["n"], row["n_nonfinite"]) == (20 * 17, 21 * 18 - 20 * 17)
    x, w = np.delete(tensors["x"], 3, 0), np.delete(tensors["w"], 5, 0)
    qx, qw = fake_quantize(x, E4M3), fake_quantize(w, E4M3)
    for name, value in loop_sums(x, w, qx, qw).items():
        assert row[name] == pytest.approx(value, rel=1e-12)
    assert row["sum_y2"] < clean["sum_y2"]
    (row, *_) = probe(small(), [parse_recipe("static:scale=1e-44")], "exact")
    assert (row["n"], row["n_nonfinite"], row["sum_err2"], row["sum_x2w2"]) == (0, 21 * 18, 0.0, 0.0)


def test_high_precision_is_what_the_gemm_reads() -> None:
    """Under autocast FP32 operands are BF16 before anything else: BF16 as a recipe then loses nothing."""
    recipe = parse_recipe("bf16")
    rows = probe(small(), [recipe], "exact", dtype=torch.bfloat16)
    assert [row["sum_err2"] for row in rows] == [0.0, 0.0, 0.0]
    assert all(row["sum_err2"] > 0 for row in probe(small(), [recipe], "exact", dtype=torch.float32))


def hopper_loops(a: F32, b: F32, promote_every: int | None, a_format: Format) -> F64:
    return np.array(
        [[hopper_scalar(u.tolist(), v.tolist(), promote_every=promote_every, a_format=a_format) for v in b] for u in a]
    )


@pytest.mark.parametrize("accumulation", ["hopper-fast", "hopper-promoted"])
def test_hopper(accumulation: str) -> None:
    """Codes go through the tensor core, factors are applied to what comes out: after all, or after each 128."""
    rng = np.random.default_rng(5)
    tensors = {"x": abs(normal(rng, 3, 300)), "w": abs(normal(rng, 2, 300)), "dy": normal(rng, 3, 2)}
    every = 128 if accumulation == "hopper-promoted" else None
    recipes = [parse_recipe(text) for text in ("delayed", "rowwise", "block", "mxfp8", "nvfp4", "bf16", "coat")]
    rows = {row["recipe"]: row for row in probe(tensors, recipes, accumulation) if row["gemm"] == "fprop"}
    with_blocks = {"block"} if every else set()
    assert set(rows) == {"delayed", "rowwise"} | with_blocks, "no other GEMM exists on Hopper"

    x, w = tensors["x"], tensors["w"]
    y = x.astype(np.float64) @ w.T.astype(np.float64)
    expected = {"delayed": hopper_loops(fake_quantize(x, E4M3), fake_quantize(w, E4M3), every, E4M3)}
    sx, sw = power_of_two(x.max(1, keepdims=True)), power_of_two(w.max(1, keepdims=True))
    by_line = hopper_loops(fake_quantize(x * sx, E4M3), fake_quantize(w * sw, E4M3), every, E4M3)
    expected["rowwise"] = by_line / sx / sw.T
    total = np.zeros((3, 2))
    for start in range(0, 300, 128):
        xs, ws = x[:, start : start + 128], w[:, start : start + 128]
        sx, sw1 = power_of_two(xs.max(1, keepdims=True)), power_of_two(ws.max())
        part = hopper_loops(fake_quantize(xs * sx, E4M3), fake_quantize(ws * sw1, E4M3), None, E4M3)
        total = (total + part / sx / sw1).astype(np.float32).astype(np.float64)
    expected["block"] = total
    for recipe, row in rows.items():
        q = expected[recipe]
        assert row["accumulation"] == accumulation
        assert row["sum_q2"] == pytest.approx((q * q).sum(), rel=1e-12)
        assert row["sum_err2"] == pytest.approx(((y - q) ** 2).sum(), rel=1e-9)


def test_hopper_reads_two_formats_and_a_scale() -> None:
    """dy in E5M2 beside w in E4M3: a subnormal is aligned as its own format has it."""
    rng = np.random.default_rng(6)
    tensors = {"x": rng.standard_normal((2, 3)), "w": rng.standard_normal((70, 3)), "dy": rng.standard_normal((2, 70))}
    given = {name: (value * 2.0**-15).astype(np.float32) for name, value in tensors.items()}
    recipe = parse_recipe("static:scale=3")
    row = next(row for row in probe(given, [recipe], "hopper-fast") if row["gemm"] == "dgrad")
    assert (row["fmt"], row["other_fmt"]) == ("E5M2", "E4M3")
    dy = fake_quantize(given["dy"] * np.float32(3), E5M2)
    w = fake_quantize(np.ascontiguousarray(given["w"].T) * np.float32(3), E4M3)
    inverse = scale_inv(np.float32(3))
    q = (hopper_loops(dy, w, None, E5M2) * np.float64(inverse * inverse)).astype(np.float32).astype(np.float64)
    assert row["sum_q2"] == pytest.approx((q * q).sum(), rel=1e-12)


def test_hopper_bias_on_positive_operands() -> None:
    """Truncation only takes away: 7 % at a depth of 4096, unless promoted."""
    rng = np.random.default_rng(7)
    tensors = {
        "x": rng.random((64, 4096)).astype(np.float32),
        "w": rng.random((64, 4096)).astype(np.float32),
        "dy": np.ones((64, 64), np.float32),
    }
    rows = probe(tensors, [parse_recipe("current")], "exact", "hopper-fast", "hopper-promoted")
    gain = {row["accumulation"]: row["sum_yq"] / row["sum_y2"] for row in rows if row["gemm"] == "fprop"}
    samples = {(row["n_rows"], row["n_columns"], row["sample"]) for row in rows if row["gemm"] == "fprop"}
    assert gain["hopper-fast"] / gain["exact"] == pytest.approx(0.927, abs=0.004)
    assert gain["hopper-promoted"] / gain["exact"] == pytest.approx(0.9995, abs=0.0003)
    assert len(samples) == 1, "figures side by side are of one sample"
    assert samples.pop()[:2] == (16, 16)


def whole_sqnr_db(gemm: str, tensors: Matrices, recipe: Recipe, fmt: Format, other: Format) -> float:
    """SQNR of every element of the result."""
    a, b = (oriented(tensors[name], orientation).astype(np.float64) for name, orientation in GEMMS[gemm])
    qa, qb = (read_by(gemm, tensors, recipe, i, f).astype(np.float64) for i, f in enumerate((fmt, other)))
    y = a @ b.T
    return float(10 * np.log10((y**2).sum() / ((y - qa @ qb.T) ** 2).sum()))


ESTIMATED = [parse_recipe(text) for text in ("current", "rowwise", "block", "mxfp8", "mxfp4", "nvfp4")]


def estimate_errors_db(tensors: Matrices) -> list[float]:
    """Sampled minus whole, over GEMMs and recipes."""
    errors = []
    for row in probe(tensors, ESTIMATED, "exact"):
        if not row["alternate"]:
            recipe = parse_recipe(row["recipe"])
            formats = [recipe.formats_for(name)[0][0] for name, _ in GEMMS[row["gemm"]]]
            sampled = 10 * math.log10(row["sum_y2"] / row["sum_err2"])
            errors.append(sampled - whole_sqnr_db(row["gemm"], tensors, recipe, *formats))
    assert len(errors) == 18
    return errors


@pytest.mark.parametrize(("outliers", "spread_db"), [(1.0, 0.45), (100.0, 0.6)])
def test_estimates_against_the_whole(outliers: float, spread_db: float) -> None:
    """1,024 of 98,304 to 196,608 results: no bias, and some tenths of a decibel off.

    With outliers, four channels of x are so much larger: they are in each result of fprop, and are its noise as well.
    """
    errors: list[float] = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        tensors = {"x": normal(rng, 512, 384), "w": normal(rng, 256, 384), "dy": normal(rng, 512, 256)}
        tensors["x"][:, [7, 100, 101, 333]] *= np.float32(outliers)
        errors += estimate_errors_db(tensors)
    assert abs(np.mean(errors)) < 0.25
    assert np.std(errors) < spread_db
    assert max(map(abs, errors)) < 3 * spread_db
