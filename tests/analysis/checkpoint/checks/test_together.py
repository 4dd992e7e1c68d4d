"""Scales that belong together: copies, products, inverses, keys and values, columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint import Audit, CheckFinding, Convention, Facts, Scale, audit_checkpoint
from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.checks.reciprocal import reciprocal_wrong
from fp8debug.analysis.checkpoint.store import open_store

Written = Callable[..., Path]
Array = npt.NDArray[Any]
Tensors = dict[str, tuple[str, Array]]

RNG = np.random.default_rng(5)
DEEPSEEK = {"config.json": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}}


def quantised(name: str, w: Array, block: int) -> Tensors:
    """Blocks of a square matrix, each by its own amax."""
    n = w.shape[0] // block
    tiles = w.reshape(n, block, n, block)
    scale = (np.abs(tiles).max(axis=(1, 3)) / 448).astype(np.float32)
    codes = (tiles / scale[:, None, :, None]).reshape(w.shape).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
    return {f"{name}.weight": ("F8_E4M3", codes.view(np.uint8)), f"{name}.weight_scale_inv": ("F32", scale)}


def model(layers: int = 4) -> Tensors:
    made: Tensors = {}
    for layer in range(layers):
        made |= quantised(f"layers.{layer}.mlp.down_proj", RNG.standard_normal((128, 128)) * 0.02, 64)
    return made


def only(audit: Audit, check: str) -> CheckFinding:
    (finding,) = (one for one in audit.findings if one.check == check)
    return finding


def checks_of(audit: Audit) -> set[str]:
    return {one.check for one in audit.findings}


def test_a_grid_that_is_another_layers(written: Written) -> None:
    tensors = model()
    assert checks_of(audit_checkpoint(written(tensors, configs=DEEPSEEK, folder="right"))) == set()
    name = "layers.{}.mlp.down_proj.weight_scale_inv"
    tensors[name.format(3)] = tensors[name.format(1)]
    finding = only(audit_checkpoint(written(tensors, configs=DEEPSEEK)), "scale_copied")
    assert finding.severity == "warning"
    assert "layers.1.mlp.down_proj.weight, layers.3.mlp.down_proj.weight have the same 4 scales" in finding.message


def test_a_layer_that_is_stored_twice_is_no_copy(written: Written) -> None:
    tensors = model(3)
    for ending in ("weight", "weight_scale_inv"):
        tensors[f"mtp.down_proj.{ending}"] = tensors[f"layers.0.mlp.down_proj.{ending}"]
    assert "scale_copied" not in checks_of(audit_checkpoint(written(tensors, configs=DEEPSEEK)))


@pytest.mark.parametrize(("largest", "expected"), [(1.234567, {"scale_copied"}), (1.234375, set())])
def test_two_of_many_may_have_the_same_largest_value_in_bf16(
    largest: float, expected: set[str], written: Written
) -> None:
    tensors: Tensors = {}
    for layer in range(3):
        w = RNG.standard_normal((16, 16)) * 0.02
        amax = largest if layer else np.abs(w).max()
        tensors[f"layers.{layer}.q_proj.weight"] = ("F8_E4M3", RNG.integers(0, 127, (16, 16)).astype(np.uint8))
        tensors[f"layers.{layer}.q_proj.weight_scale"] = ("F32", np.array(amax / 448))
    assert checks_of(audit_checkpoint(written(tensors))) & {"scale_copied"} == expected


@pytest.mark.parametrize("codes", [0, 0x7E])
def test_tensors_of_zeros_and_ternary_weights_share_scales_in_all_layers(codes: int, written: Written) -> None:
    tensors: Tensors = {}
    for layer in range(3):
        for part in ("q_proj", "k_proj", "v_proj"):
            drawn = RNG.choice(np.array([0, codes, codes | 0x80], np.uint8), (16, 16))
            tensors[f"layers.{layer}.{part}.weight"] = ("F8_E4M3", drawn if codes else drawn & 0)
            tensors[f"layers.{layer}.{part}.weight_scale"] = ("F32", np.array(1.2345e-9))
    assert not checks_of(audit_checkpoint(written(tensors))) & {"scale_copied", "scale_shared_by_parts"}


def test_codes_as_large_as_weights_are_watched_where_they_lack_a_scale(written: Written) -> None:
    tensors = model()
    tensors["text.fc.weight"] = (
        "F8_E4M3",
        (RNG.standard_normal((64, 64)) * 0.1).astype(ml_dtypes.float8_e4m3fn).view(np.uint8),
    )
    finding = only(audit_checkpoint(written(tensors, configs=DEEPSEEK)), "scale_missing")
    assert finding.severity == "watch" and "as weights do that were cast as they are" in finding.message


@pytest.mark.parametrize("dialect", ["multiplies", "divides"])
def test_scales_of_zero_are_no_copies(dialect: str, written: Written) -> None:
    tensors: Tensors = {}
    for layer in range(2):
        tensors[f"layers.{layer}.q_proj.weight"] = ("F8_E4M3", RNG.integers(0, 127, (16, 16)).astype(np.uint8))
        tensors[f"layers.{layer}.q_proj.scale"] = ("F32", np.array(0.0))
    assert "scale_copied" not in checks_of(audit_checkpoint(written(tensors), dialect=dialect))


def test_scales_of_largest_values_in_bf16_times_a_constant_are_often_the_same(written: Written) -> None:
    tensors: Tensors = {}
    for layer, largest in enumerate([1.234375, 1.5078125, 1.0234375, 1.7265625, 1.5078125, 1.9453125]):
        tensors[f"layers.{layer}.q_proj.weight"] = ("F8_E4M3", RNG.integers(0, 127, (16, 16)).astype(np.uint8))
        tensors[f"layers.{layer}.q_proj.weight_scale"] = ("F32", np.array(largest * 0.93 / 448))
    assert "scale_copied" not in checks_of(audit_checkpoint(written(tensors)))


NVFP4 = {"config.json": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}}}


@pytest.mark.parametrize(("second", "words"), [(1e-38, "below FP32's smallest normal"), (1e37, "above FP32's largest")])
def test_levels_whose_product_leaves_the_range(written: Written, second: float, words: str) -> None:
    tensors = {
        "a.weight": ("U8", RNG.integers(0, 256, (32, 32)).astype(np.uint8)),
        "a.weight_scale": ("F8_E4M3", RNG.integers(0x10, 0x7E, (32, 4)).astype(np.uint8)),
        "a.weight_scale_2": ("F32", np.array(second, np.float32)),
    }
    finding = only(audit_checkpoint(written(tensors, configs=NVFP4)), "scale_product_out_of_range")
    assert finding.message.count(words) == 1
    tensors["a.weight_scale_2"] = ("F32", np.array(1e-4, np.float32))
    assert "scale_product_out_of_range" not in checks_of(
        audit_checkpoint(written(tensors, configs=NVFP4, folder="fine"))
    )


@pytest.mark.parametrize("wrong", [False, True])
def test_inverses(written: Written, wrong: bool) -> None:
    scale = np.array([3.0, 7.0, 448 / 0.3], np.float32)
    inverse = np.float32(1) / scale * np.where(wrong, [1, 2, 1], 1).astype(np.float32)
    path = written({"fc.scale_fwd": ("F32", scale), "fc.scale_inv_fwd": ("F32", inverse)})
    scales = (
        Scale("fc.scale_fwd", "input", "F32", (3,), True, "tensor", module="fc"),
        Scale("fc.scale_inv_fwd", "reciprocal", "F32", (3,), False, "tensor", module="fc"),
    )
    with open_store(path) as store:
        subject = Subject(store, Convention(None, "", "", (), scales), Facts({}, {}, {}))
        hits = list(reciprocal_wrong(subject))
    assert len(hits) == wrong
    if wrong:
        assert hits[0].place.message == "fc.scale_inv_fwd times fc.scale_fwd is 2 at [1], not 1"


def cache(k: float, v: float, layers: int = 3) -> Tensors:
    made: Tensors = {}
    for layer in range(layers):
        base = f"model.layers.{layer}.self_attn"
        made |= {f"{base}.k_proj.k_scale": ("F32", np.array(k)), f"{base}.v_proj.v_scale": ("F32", np.array(v))}
        made[f"{base}.k_proj.weight"] = ("BF16", RNG.standard_normal((16, 16)) * 0.02)
    return made


def severities(audit: Audit) -> Mapping[str, str]:
    return {one.check: one.severity for one in audit.findings}


def test_scales_of_the_cache(written: Written) -> None:
    ones = audit_checkpoint(written(cache(1.0, 1.0), folder="ones"))
    assert severities(ones) == {"kv_scale_one": "note"}
    assert "the scale of keys is 1.0 in 3 of 3 layers" in only(ones, "kv_scale_one").places[0].message
    shared = audit_checkpoint(written(cache(0.04, 0.04), folder="shared"))
    assert severities(shared) == {"kv_scale_shared": "note"}
    assert audit_checkpoint(written(cache(0.04, 0.001))).findings == ()


def test_a_channel_of_keys_without_a_scale_that_is_clipped(written: Written) -> None:
    keys = RNG.standard_normal((256, 16)) * 20
    keys[:, 3] *= 15
    codes = keys.clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    tensors = {"layers.0.k_cache": ("F8_E4M3", codes), "layers.0.k_scale": ("F32", np.array(1.0))}
    audit = audit_checkpoint(written(tensors))
    assert only(audit, "column_clipped").places[0].numbers["column"] == 3 and not audit.n_errors


@pytest.mark.parametrize("divides", [False, True])
def test_experts_of_bf16_weights_have_equal_scales_by_chance(divides: bool, written: Written) -> None:
    drawn = np.random.default_rng(3).standard_normal((48, 2, 16, 64)) * 0.02
    weights = drawn.astype(ml_dtypes.bfloat16).astype(np.float32)
    tensors: Tensors = {}
    for expert, parts in enumerate(weights):
        for part, w in zip(("w1", "w3"), parts, strict=True):
            scale = np.float32(np.abs(w).max() / np.float32(448))
            if expert % 12 == 0:
                w = w * (np.abs(parts[0]).max() / np.abs(w).max())  # equal by chance, as 1 or 2 of a hundred are
                scale = np.float32(np.abs(parts[0]).max() / np.float32(448))
            name = f"layers.0.block_sparse_moe.experts.{expert}.{part}.weight"
            tensors[name] = ("F8_E4M3", (w / scale).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
            tensors[f"{name}_scale"] = ("F32", np.array(1 / scale if divides else scale))
    audit = audit_checkpoint(written(tensors), dialect="divides" if divides else "multiplies")
    assert not checks_of(audit) & {"scale_copied", "scale_shared_by_parts", "code_clipped"}
