"""Dialects recognised, and what their scales do: values against arithmetic written out here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fp8debug.analysis.checkpoint.convention import read_convention
from fp8debug.analysis.checkpoint.records import Convention
from fp8debug.analysis.checkpoint.store import open_store
from fp8debug.analysis.checkpoint.values import Dequantiser

Written = Callable[..., Path]
RNG = np.random.default_rng(3)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def codes(*shape: int) -> npt.NDArray[np.uint8]:
    return RNG.integers(0, 0x7F, shape).astype(np.uint8)


def e4m3(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return raw.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def read(path: Path, dialect: str | None = None) -> tuple[Convention, dict[str, npt.NDArray[np.float32]]]:
    """The convention, and the values of everything quantised."""
    with open_store(path) as store:
        convention = read_convention(store, dialect)
        values = {
            one.name: np.concatenate([part for _, part in Dequantiser(store, one).bands()])
            for one in convention.quantised
        }
    return convention, values


def test_weight_scale_inv_multiplies_and_the_block_comes_from_the_configuration(written: Written) -> None:
    raw, scale = codes(100, 70), RNG.random((2, 2)).astype(np.float32)
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64], "scale_fmt": "ue8m0"}}
    path = written(
        {
            "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", raw),
            "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", scale),
            "model.norm.weight": ("BF16", np.ones(70)),
        },
        configs={"config.json": config},
    )
    convention, values = read(path)
    assert convention.dialect == "deepseek" and convention.why.startswith(
        "config.json: quantization_config.quant_method"
    )
    assert (convention.block, convention.power_of_two, convention.assumptions) == ((64, 64), True, ())
    assert convention.block_from == "config.json: quantization_config.weight_block_size"
    assert convention.plain == ("model.norm.weight",) and convention.quantised[0].module == "model.layers.0.mlp.up_proj"
    expected = e4m3(raw) * np.kron(scale, np.ones((64, 64), np.float32))[:100, :70]
    np.testing.assert_array_equal(values["model.layers.0.mlp.up_proj.weight"], expected)


def test_two_levels_of_compressed_tensors_the_second_divides(written: Written) -> None:
    packed, block = codes(4, 16), np.full((4, 2), 0x38, np.uint8)  # 1 in E4M3
    path = written(
        {
            "a.weight_packed": ("U8", packed),
            "a.weight_scale": ("F8_E4M3", block),
            "a.weight_global_scale": ("F32", np.array([8.0])),
            "a.input_global_scale": ("F32", np.array([2.0])),
        },
        configs={"config.json": {"quantization_config": {"quant_method": "compressed-tensors"}}},
    )
    convention, values = read(path)
    (tensor,), (given,) = convention.quantised, convention.scales
    assert (tensor.shape, tensor.fmt, tensor.module) == ((4, 32), "E2M1", "a")
    assert [(s.kind, s.divides, s.layout, s.block) for s in tensor.scales] == [
        ("weight", False, "block", (1, 16)),
        ("tensor", True, "tensor", None),
    ]
    assert (given.kind, given.divides, given.module) == ("input", True, "a")
    expected = np.stack([E2M1[packed & 15], E2M1[packed >> 4]], -1).reshape(4, 32) / np.float32(8)
    np.testing.assert_array_equal(values["a.weight_packed"], expected)


def test_two_levels_of_modelopt_both_multiply(written: Written) -> None:
    packed, block = codes(4, 16), np.full((4, 2), 0x38, np.uint8)
    path = written(
        {
            "a.weight": ("U8", packed),
            "a.weight_scale": ("F8_E4M3", block),
            "a.weight_scale_2": ("F32", np.array(0.125)),
            "b.weight": ("F8_E4M3", codes(4, 8)),
            "b.weight_scale": ("F32", np.array(0.5)),
            "b.input_scale": ("F32", np.array(0.25)),
            "self_attn.k_proj.k_scale": ("F32", np.array(1.0)),
        },
        configs={"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4",
            "group_size": 16, "exclude_modules": ["lm_head"]}}},
    )  # fmt: skip
    convention, values = read(path)
    assert (convention.dialect, convention.excluded, convention.block) == ("modelopt", ("lm_head",), (1, 16))
    assert [(scale.kind, scale.module) for scale in convention.scales] == [("input", "b"), ("k", "self_attn.k_proj")]
    expected = np.stack([E2M1[packed & 15], E2M1[packed >> 4]], -1).reshape(4, 32) * np.float32(0.125)
    np.testing.assert_array_equal(values["a.weight"], expected)
    assert convention.assumptions == () and convention.unknown == () and convention.orphan_scales == ()
