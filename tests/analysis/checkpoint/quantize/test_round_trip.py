"""Every recipe in every dialect that holds it: what is read back is what the recipe makes, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.quantize import Form, forms, quantize_checkpoint
from fp8debug.analysis.checkpoint.records import Quantised
from fp8debug.analysis.checkpoint.store import Store, open_store
from fp8debug.analysis.checkpoint.values import Dequantiser
from fp8debug.blocks import quantize_blocks
from fp8debug.formats import Float32Array
from fp8debug.recipes import BlockRecipe, TensorRecipe, parse_recipe, scaled_cast

PARAMETERS = {
    "current": ["", "power_of_two=true"],
    "static": [""],
    "rowwise": ["", "power_of_two=false"],
    "block": ["", "power_of_two=false", "power_of_two=false,flavour=deepseek", "flavour=deepgemm"],
    "mxfp8": ["", "scale_rule=floor", "scale_rule=ceil", "scale_rule=even", "enable_2d_quantization=true"],
    "mxfp4": ["", "scale_rule=floor"],
    "nvfp4": ["flavour=modelopt", "flavour=torchao", "flavour=te"],
}

GENERIC = ("multiplies", "divides")
"""Recognised by nothing, since their names say nothing."""


def cases() -> list[tuple[Form, str]]:
    """Each form with each element format, and the usual one of a recipe with each choice of its parameters."""
    made = []
    seen: set[str] = set()
    for form in forms():
        choices = PARAMETERS[form.recipe][: None if form.recipe not in seen else 1]
        seen.add(form.recipe)
        formats = [f"fp8_format={fmt}" if len(form.formats) > 1 else "" for fmt in form.formats]
        pairs = [(choice, formats[0]) for choice in choices] + [(choices[0], fmt) for fmt in formats[1:]]
        made += [(form, f"{form.recipe}:{','.join(filter(None, pair))}") for pair in pairs]
    return made


@pytest.fixture(scope="module")
def weights() -> dict[str, Float32Array]:
    """Weights whose blocks differ in magnitude, one of them large and one tiny."""
    rng = np.random.default_rng(0)
    spread = np.exp2(rng.integers(-3, 4, (256, 1)))
    return {
        "model.layers.0.mlp.up_proj.weight": (rng.normal(0, 0.02, (256, 384)) * spread).astype(np.float32),
        "model.layers.0.mlp.down_proj.weight": rng.normal(0, 0.03, (384, 256)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Float32Array]) -> Path:
    plain: dict[str, Any] = {
        "model.embed_tokens.weight": np.ones((64, 384), np.float32),
        "model.layers.0.input_layernorm.weight": np.ones(384, np.float16),
        "lm_head.weight": np.ones((64, 384), np.float32),
    }
    path = tmp_path_factory.mktemp("source")
    save_file({**weights, **plain}, path / "model.safetensors")
    return path


def dequantised(store: Store, one: Quantised) -> Float32Array:
    return np.concatenate([band for _, band in Dequantiser(store, one).bands()])


def expected(w: Float32Array, text: str) -> Float32Array:
    """What the core makes of a weight."""
    recipe = parse_recipe(text)
    fmt = recipe.formats_for("w")[0][0]
    if isinstance(recipe, TensorRecipe):
        return scaled_cast(w, recipe.scale(float(np.abs(w).max()), fmt), fmt)[0]
    assert isinstance(recipe, BlockRecipe)
    return quantize_blocks(w, recipe, "w", fmt).values


@pytest.mark.parametrize(("form", "recipe"), cases(), ids=lambda case: case if isinstance(case, str) else case.dialect)
def test_round_trip(form: Form, recipe: str, source: Path, weights: dict[str, Float32Array], tmp_path: Path) -> None:
    written = quantize_checkpoint(source, tmp_path / "out", recipe, form.dialect)
    assert {one.name for one in written.quantised} == weights.keys()
    with open_store(tmp_path / "out") as store:
        convention = read_convention(store, form.dialect if form.dialect in GENERIC else None)
        assert convention.dialect == form.dialect
        assert (convention.unknown, convention.orphan_scales, store.problems) == ((), (), ())
        assert "lm_head.weight" in convention.plain
        for one in convention.quantised:
            assert one.fmt == written.fmt
            w = weights[f"{one.module}.weight"]
            got, right = dequantised(store, one), expected(w, recipe)
            if "flavour=te" in recipe or (form.tensor_scale is not None and form.tensor_scale.divides):
                # Two scales are multiplied in another order, or 2688 / amax is stored: another rounding or two.
                np.testing.assert_allclose(got, right, rtol=2.0**-22)
            else:
                assert np.array_equal(got.view(np.uint32), right.view(np.uint32))
            (told,) = [one_of for one_of in written.quantised if one_of.name == f"{one.module}.weight"]
            error = got.astype(np.float64) - w
            sqnr_db = 10 * np.log10(np.sum(np.square(w, dtype=np.float64)) / np.sum(error**2))
            assert told.sqnr_db == pytest.approx(sqnr_db, abs=1e-4)
