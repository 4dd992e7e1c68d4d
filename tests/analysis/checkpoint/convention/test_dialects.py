"""Each dialect as its writers write it: values against arithmetic written out here."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

Reader = Callable[..., Any]
RNG = np.random.default_rng(3)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
ONE = 0x38
"""1 in E4M3."""


def codes(*shape: int) -> npt.NDArray[np.uint8]:
    return RNG.integers(0, 0x7F, shape).astype(np.uint8)


def f32(*shape: int) -> npt.NDArray[np.float32]:
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


def e4m3(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    values: npt.NDArray[np.float32] = raw.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return values


def pairs(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """The low half of a byte first."""
    return np.stack([E2M1[raw & 15], E2M1[raw >> 4]], -1).reshape(*raw.shape[:-1], -1)


def spread(grid: npt.NDArray[np.float32], block: tuple[int, int], shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    whole: npt.NDArray[np.float32] = np.kron(grid, np.ones(block, np.float32))[: shape[0], : shape[1]]
    return whole


def test_weight_scale_inv_multiplies_and_the_block_comes_from_the_configuration(read: Reader) -> None:
    raw, scale = codes(100, 70), f32(2, 2)
    got = read(
        {
            "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", raw),
            "model.layers.0.mlp.up_proj.weight_scale_inv": ("F32", scale),
            "model.norm.weight": ("BF16", np.ones(70)),
        },
        {
            "quant_method": "fp8", "weight_block_size": [64, 64], "scale_fmt": "ue8m0",
            "modules_to_not_convert": ["lm_head"],
        },
    )  # fmt: skip
    convention = got.convention
    assert convention.dialect == "deepseek" and "config.json: quantization_config.quant_method is fp8" in convention.why
    assert (convention.block, convention.power_of_two, convention.assumptions) == ((64, 64), True, ())
    assert convention.block_from == "config.json: quantization_config.weight_block_size"
    assert (convention.excluded, convention.plain) == (("lm_head",), ("model.norm.weight",))
    assert convention.quantised[0].module == "model.layers.0.mlp.up_proj"
    np.testing.assert_array_equal(
        got.values["model.layers.0.mlp.up_proj.weight"], e4m3(raw) * spread(scale, (64, 64), (100, 70))
    )


def test_a_block_size_that_nobody_states_is_that_of_the_dialect_and_said(read: Reader) -> None:
    got = read({"a.weight": ("F8_E4M3", codes(130, 300)), "a.weight_scale_inv": ("BF16", f32(2, 3))})
    assert (got["a.weight"].scales[0].block, got.convention.block) == ((128, 128), None)
    assert "no configuration states the block size; 128 x 128 taken, as DeepSeek" in got.said


def test_a_grid_of_other_blocks_than_stated_is_not_applied_and_those_that_would_fit_are_told(read: Reader) -> None:
    got = read(
        {"a.weight": ("F8_E4M3", codes(200, 300)), "a.weight_scale_inv": ("F32", f32(4, 5))},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
    )
    (misfit,) = got.convention.misfits
    assert misfit.expected == ((2, 3),) and misfit.message.endswith("give that shape; blocks of 64 x 64 would.")


def test_static_activations_and_one_number_a_tensor(read: Reader) -> None:
    got = read(
        {
            "a.weight": ("F8_E4M3", codes(4, 8)), "a.weight_scale_inv": ("F32", np.array(0.5)),
            "a.activation_scale": ("F32", np.array(0.25)),
            "experts.gate_up_proj": ("F8_E4M3", codes(2, 4, 8)),
            "experts.gate_up_proj_scale_inv": ("F32", f32(2, 1, 1)),
            "experts.gate_up_proj_activation_scale": ("F32", f32(2)),
        },
        {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"},
    )  # fmt: skip
    assert [one.module for one in got.convention.quantised] == ["a", "experts.gate_up_proj"]
    assert [(one.kind, one.module) for one in got.convention.scales] == [
        ("input", "a"),
        ("input", "experts.gate_up_proj"),
    ]
    assert got["experts.gate_up_proj"].scales[0].layout == "tensor"
    assert got.convention.unknown == () and got.convention.assumptions == ()


def test_both_halves_of_stacked_experts_have_a_number_of_their_own(read: Reader) -> None:
    raw, scale = codes(3, 6, 8), f32(3, 2, 1)
    got = read(
        {"e.gate_up_proj": ("F8_E4M3", raw), "e.gate_up_proj_scale_inv": ("F32", scale)}, {"quant_method": "fp8"}
    )
    np.testing.assert_array_equal(
        got.values["e.gate_up_proj"], (e4m3(raw) * np.repeat(scale, 3, axis=1)).reshape(18, 8)
    )
    assert "one number for each half" in got.said


@pytest.mark.parametrize("shape", [(3, 1, 8), (3, 8, 1), (3, 8)])
def test_a_number_for_each_column_of_each_stacked_matrix(shape: tuple[int, ...], read: Reader) -> None:
    raw, scales = codes(3, 4, 8), f32(*shape)
    got = read(
        {"experts.down_proj": ("F8_E4M3", raw), "experts.down_proj_scale": ("F32", scales)},
        {"quant_method": "fbgemm_fp8"},
    )
    expected = e4m3(raw) * scales.reshape(3, 1, 8)
    np.testing.assert_allclose(got.values["experts.down_proj"], expected.reshape(12, 8), rtol=1e-6)
    assert "one number a column of each matrix of the stack taken" in got.said


def test_experts_of_four_bits_in_i8_beside_layers_in_fp8(read: Reader) -> None:
    """As DeepSeek-V4 and transformers have it: `expert_dtype` fp4, scales of 1 x 32 beside blocks of 128 x 128."""
    raw = codes(4, 32)
    got = read(
        {
            "experts.0.w1.weight": ("I8", raw), "experts.0.w1.scale": ("F8_E8M0", np.full((4, 2), 128, np.uint8)),
            "wq.weight": ("F8_E4M3", codes(130, 8)), "wq.scale": ("F8_E8M0", np.full((2, 1), 126, np.uint8)),
        },
        {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"},
    )  # fmt: skip
    assert [got[name].scales[0].block for name in ("experts.0.w1.weight", "wq.weight")] == [(1, 32), (128, 128)]
    np.testing.assert_array_equal(got.values["experts.0.w1.weight"], pairs(raw) * 2)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4,), (4, 1)])
def test_one_number_a_tensor_or_a_line_of_compressed_tensors(shape: tuple[int, ...], read: Reader) -> None:
    raw, scale = codes(4, 8), f32(*shape)
    got = read(
        {
            "a.weight": ("F8_E4M3", raw), "a.weight_scale": ("F32", scale), "a.input_scale": ("F32", f32(1)),
            "self_attn.k_scale": ("BF16", f32(1)), "self_attn.q_scale": ("BF16", f32(1)),
        },
        {"quant_method": "compressed-tensors", "ignore": ["re:.*gate$"],
         "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"strategy": "channel"}}}},
    )  # fmt: skip
    np.testing.assert_array_equal(got.values["a.weight"], e4m3(raw) * scale.reshape(-1, 1))
    assert (got.convention.excluded, got.convention.targets) == (("re:.*gate$",), ("Linear",))
    assert [one.kind for one in got.convention.scales] == ["input", "k", "q"] and got.convention.assumptions == ()


def test_several_schemes_of_compressed_tensors_in_one_file(read: Reader) -> None:
    raw, group = codes(256, 256), f32(256, 2)
    got = read(
        {
            "a.weight": ("F8_E4M3", raw), "a.weight_scale": ("BF16", f32(2, 2)),
            "b.weight": ("F8_E4M3", raw), "b.weight_scale": ("F32", group),
            "c.weight": ("BF16", np.ones((4, 4))),
        },
        {"quant_method": "compressed-tensors", "config_groups": {
            "group_0": {"weights": {"strategy": "block", "block_structure": "128x128"}},
            "group_1": {"weights": {"strategy": "group", "group_size": 128}}}},
    )  # fmt: skip
    assert [one.scales[0].block for one in got.convention.quantised] == [(128, 128), (1, 128)]
    np.testing.assert_array_equal(got.values["b.weight"], e4m3(raw) * np.repeat(group, 128, axis=1))


def test_two_levels_of_compressed_tensors_the_second_divides(read: Reader) -> None:
    packed = codes(4, 16)
    got = read(
        {
            "a.weight_packed": ("U8", packed),
            "a.weight_scale": ("F8_E4M3", np.full((4, 2), ONE, np.uint8)),
            "a.weight_global_scale": ("F32", np.array([8.0])),
            "a.input_global_scale": ("F32", np.array([2.0])),
            "a.weight_shape": ("I64", np.array([4, 32])),
        }
    )
    tensor, (given,) = got["a.weight_packed"], got.convention.scales
    assert (tensor.shape, tensor.fmt, tensor.module) == ((4, 32), "E2M1", "a")
    assert [(one.kind, one.divides, one.layout, one.block) for one in tensor.scales] == [
        ("weight", False, "block", (1, 16)),
        ("tensor", True, "tensor", None),
    ]
    assert (got.convention.dialect, given.kind, given.divides) == ("compressed-tensors", "input", True)
    assert (got.convention.plain, got.convention.unknown, got.convention.assumptions) == ((), (), ())
    np.testing.assert_array_equal(got.values["a.weight_packed"], pairs(packed) / np.float32(8))


def test_two_levels_of_modelopt_both_multiply(read: Reader) -> None:
    packed = codes(4, 16)
    got = read(
        {
            "a.weight": ("U8", packed),
            "a.weight_scale": ("F8_E4M3", np.full((4, 2), ONE, np.uint8)),
            "a.weight_scale_2": ("F32", np.array(0.125)),
            "b.weight": ("F8_E4M3", codes(4, 8)),
            "b.weight_scale": ("F32", np.array(0.5)),
            "b.input_scale": ("F32", np.array(0.25)),
            "self_attn.k_proj.k_scale": ("F32", np.array(1.0)),
        },
        hf_quant_config={
            "producer": {"name": "modelopt"},
            "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]},
        },
    )
    convention = got.convention
    assert (convention.dialect, convention.excluded, convention.block) == ("modelopt", ("lm_head",), (1, 16))
    assert [(scale.kind, scale.module) for scale in convention.scales] == [("input", "b"), ("k", "self_attn.k_proj")]
    np.testing.assert_array_equal(got.values["a.weight"], pairs(packed) * np.float32(0.125))
    assert convention.assumptions == () and convention.unknown == () and convention.orphan_scales == ()


def test_scales_of_nvfp4_that_are_stored_as_bytes(read: Reader) -> None:
    raw, scales = codes(4, 16), codes(4, 2)
    got = read({"a.weight": ("U8", raw), "a.weight_scale": ("U8", scales), "a.weight_scale_2": ("F32", np.array(0.5))})
    assert got["a.weight"].scales[0].encoding == "E4M3" and "U8 taken as E4M3" in got.said
    np.testing.assert_array_equal(got.values["a.weight"], pairs(raw) * np.repeat(e4m3(scales), 16, 1) * 0.5)


def test_stacked_experts_of_modelopt(read: Reader) -> None:
    """GPT-OSS and its like by the name of the parameter; those of Llama 4 are packed along the other axis."""
    packed, block = codes(2, 4, 16), codes(2, 4, 2)
    second = np.array([[0.5, 2], [1, 4]], np.float32)
    got = read(
        {
            "e.gate_up_proj": ("U8", packed), "e.gate_up_proj_weight_scale": ("F8_E4M3", block),
            "e.gate_up_proj_weight_scale_2": ("F32", second), "e.gate_up_proj_input_scale": ("F32", f32()),
            "l.down_proj": ("U8", codes(2, 16, 32)), "l.down_proj_weight_scale": ("F8_E4M3", codes(2, 2, 32)),
            "l.down_proj_weight_scale_2": ("F32", f32()),
        }
    )  # fmt: skip
    assert (got.convention.dialect, got["e.gate_up_proj"].module) == ("modelopt", "e.gate_up_proj")
    factors = np.repeat(e4m3(block), 16, axis=2) * np.repeat(second, 2, axis=1)[..., None]
    np.testing.assert_array_equal(got.values["e.gate_up_proj"], (pairs(packed) * factors).reshape(8, 32))
    assert "not looked at: 4-bit codes that are packed along the lines" in got.said and len(got.values) == 1
    assert set(got.convention.unknown) == {f"l.down_proj{end}" for end in ("", "_weight_scale", "_weight_scale_2")}


def test_blocks_of_modelopt_keep_their_axes(read: Reader) -> None:
    raw, scale = codes(200, 130), f32(2, 1, 2, 1)
    got = read(
        {"a.weight": ("F8_E4M3", raw), "a.weight_scale": ("F32", scale)},
        hf_quant_config={"quantization": {"quant_algo": "FP8_PB_WO"}},
    )
    np.testing.assert_array_equal(
        got.values["a.weight"], e4m3(raw) * spread(scale.reshape(2, 2), (128, 128), (200, 130))
    )


@pytest.mark.parametrize("names", [("scale_weight", "scale_input"), ("weight_scale", "input_scale")])
def test_both_spellings_of_comfyui(names: tuple[str, str], read: Reader) -> None:
    raw, scale = codes(4, 8), f32(1)
    marker = np.frombuffer(json.dumps({"format": "float8_e4m3fn"}).encode(), np.uint8)
    got = read(
        {
            "scaled_fp8": ("F8_E4M3", np.zeros(2, np.uint8)), "a.weight": ("F8_E4M3", raw), "a.bias": ("F16", f32(4)),
            "spiece_model": ("U8", codes(9)), "something": ("U8", codes(9)),
            f"a.{names[0]}": ("F32", scale), f"a.{names[1]}": ("F32", f32(1)), "a.comfy_quant": ("U8", marker),
        }
    )  # fmt: skip
    assert got.convention.dialect == "comfyui" and [one.kind for one in got.convention.scales] == ["input"]
    assert [one.name for one in got.convention.quantised] == ["a.weight"] and got.convention.plain == ("a.bias",)
    np.testing.assert_array_equal(got.values["a.weight"], e4m3(raw) * scale)
    assert got.convention.unknown == ("something",) and got.said == ""


def in_tiles(grid: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The order of tensor cores, number by number (cuBLAS, "1D block scaling factors layout")."""
    down, across = -(-grid.shape[0] // 128), -(-grid.shape[1] // 4)
    stored = np.zeros(down * across * 512, np.uint8)
    for (line, column), number in np.ndenumerate(grid):
        tile, r, c = (line // 128) * across + column // 4, line % 128, column % 4
        stored[tile * 512 + (r % 32) * 16 + (r // 32) * 4 + c] = number
    return stored.reshape(down * 128, across * 4)


def test_nvfp4_of_comfyui_has_the_first_code_in_the_high_half_and_scales_in_tiles(read: Reader) -> None:
    packed, block = codes(150, 40), codes(150, 5)
    got = read(
        {
            "a.weight": ("U8", packed), "a.weight_scale": ("F8_E4M3", in_tiles(block)),
            "a.weight_scale_2": ("F32", np.array(0.5)), "a.comfy_quant": ("U8", np.frombuffer(b"{}", np.uint8)),
        }
    )  # fmt: skip
    high_first = np.stack([E2M1[packed >> 4], E2M1[packed & 15]], -1).reshape(150, 80)
    expected = high_first * (np.repeat(e4m3(block), 16, axis=1) * np.float32(0.5))
    np.testing.assert_array_equal(got.values["a.weight"], expected)
    assert "order of tensor cores" in got.said


def test_a_grid_that_is_not_padded_to_tiles_lies_line_by_line(read: Reader) -> None:
    packed, block = codes(150, 40), codes(150, 5)
    got = read(
        {"a.weight": ("U8", packed), "a.weight_scale": ("F8_E4M3", block), "a.weight_scale_2": ("F32", f32())},
        dialect="comfyui",
    )
    assert not got["a.weight"].scales[0].is_swizzled and "tensor cores" not in got.said


def header(**parameters: Any) -> dict[str, str]:
    """The texts that torchao's safetensors support writes."""
    return {"tensor_names": json.dumps(list(parameters)), **{name: json.dumps(one) for name, one in parameters.items()}}


def test_torchao_says_in_the_header_what_a_parameter_was(read: Reader) -> None:
    raw, packed, block = codes(4, 64), codes(130, 32), codes(130, 4)
    got = read(
        {
            "a._weight_qdata": ("F8_E4M3", raw), "a._weight_scale": ("F32", f32(4, 1)), "a.bias": ("BF16", f32(4)),
            "b._weight_qdata": ("U8", packed), "b._weight_scale": ("F8_E4M3", in_tiles(block)),
            "b._weight_per_tensor_scale": ("F32", np.array(0.5)),
            "c._weight_qdata": ("F8_E4M3", raw), "c._weight_scale": ("F8_E8M0", np.full((4, 1), 128, np.uint8)),
            "d._weight_qdata": ("I8", np.zeros((4, 4), np.int8)), "d._weight_scale": ("F32", f32(4, 1)),
        },
        metadata=header(**{
            "a.weight": {"_type": "Float8Tensor", "_data": {"block_size": [1, 64]}},
            "b.weight": {"_type": "NVFP4Tensor", "_data": {"block_size": 16, "is_swizzled_scales": True}},
            "c.weight": {"_type": "MXTensor", "_data": {
                "block_size": 64, "elem_dtype": {"_type": "torch.dtype", "_data": "float8_e4m3fn"}}},
            "d.weight": {"_type": "Int8Tensor", "_data": {}},
        }),
    )  # fmt: skip
    assert {(one.module, one.fmt, one.scales[0].layout) for one in got.convention.quantised} == {
        ("a", "E4M3", "line"), ("b", "E2M1", "block"), ("c", "E4M3", "line")
    }  # fmt: skip
    np.testing.assert_array_equal(
        got.values["b._weight_qdata"], pairs(packed) * (np.repeat(e4m3(block), 16, axis=1) * np.float32(0.5))
    )
    np.testing.assert_array_equal(got.values["c._weight_qdata"], e4m3(raw) * 2)
    assert "not looked at: integers, 2 tensors" in got.said and "d._weight_qdata" in got.convention.unknown


def test_codes_of_a_format_that_is_not_known_are_no_codes(read: Reader) -> None:
    got = read(
        {"a._weight_qdata": ("U8", codes(4, 32)), "a._weight_scale": ("F8_E8M0", codes(4, 1))},
        metadata=header(**{"a.weight": {"_type": "MXTensor", "_data": {"elem_dtype": {"_data": "float6_e2m3"}}}}),
    )
    assert got.convention.quantised == () and set(got.convention.unknown) == {"a._weight_qdata", "a._weight_scale"}


def test_codes_and_scales_of_gpt_oss_lie_in_blocks_apart(read: Reader) -> None:
    blocks, scales = codes(2, 4, 3, 16), np.full((2, 4, 3), 127, np.uint8)
    scales[1, 2] = [128, 126, 127]
    got = read({
        "mlp.experts.down_proj_blocks": ("U8", blocks), "mlp.experts.down_proj_scales": ("U8", scales),
        "mlp.experts.down_proj_bias": ("BF16", f32(2, 4)),
    }, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})  # fmt: skip
    tensor = got["mlp.experts.down_proj_blocks"]
    assert (got.convention.dialect, tensor.shape, tensor.module) == ("gpt-oss", (2, 4, 96), "mlp.experts.down_proj")
    factors = np.repeat(np.ldexp(np.float32(1), scales.astype(int) - 127).reshape(8, 3), 32, axis=1)
    np.testing.assert_array_equal(got.values[tensor.name], pairs(blocks.reshape(8, 48)) * factors)


def test_fnuz_is_what_the_dtype_says_and_a_configuration_against_it_is_told(read: Reader) -> None:
    raw = codes(4, 8)
    config = {
        "quant_method": "quark", "exclude": ["lm_head"],
        "global_quant_config": {"weight": {"dtype": "fp8_e4m3fnuz", "qscheme": "per_tensor"}},
    }  # fmt: skip
    tensors = {"a.weight_scale": ("F32", np.array([0.5])), "a.weight_zero_point": ("F32", np.zeros(1))}
    right = read({**tensors, "a.weight": ("F8_E4M3FNUZ", raw)}, config)
    assert (right.convention.dialect, right["a.weight"].fmt, right.said) == ("quark", "E4M3FNUZ", "")
    np.testing.assert_array_equal(right.values["a.weight"], raw.view(ml_dtypes.float8_e4m3fnuz).astype(np.float32) / 2)
    wrong = read({**tensors, "a.weight": ("F8_E4M3", raw)}, config)
    assert "global_quant_config.weight.dtype says fnuz and the file says otherwise of 1 tensor" in wrong.said


def test_fp8_without_blocks_is_no_fine_grained_one(read: Reader) -> None:
    got = read(
        {"a.weight": ("F8_E4M3", codes(4, 8)), "a.weight_scale": ("F32", f32(4, 1)), "a.kv_scale": ("F32", f32(1))},
        {"quant_method": "fp8", "activation_scheme": "static"},
    )
    assert (got.convention.dialect, got["a.weight"].scales[0].layout) == ("fp8", "line")
    assert [(one.kind, one.name) for one in got.convention.scales] == [("k", "a.kv_scale"), ("v", "a.kv_scale")]


def test_the_first_names_of_gpt_oss(read: Reader) -> None:
    """As OpenAI's own files have them: the parameter is the layer."""
    blocks = codes(2, 4, 1, 16)
    got = read(
        {
            "block.0.mlp.mlp1_weight.blocks": ("U8", blocks),
            "block.0.mlp.mlp1_weight.scales": ("U8", np.full((2, 4, 1), 128, np.uint8)),
            "block.0.attn.norm.scale": ("BF16", f32(4)),
        }
    )
    assert (got.convention.dialect, got.convention.plain) == ("gpt-oss", ("block.0.attn.norm.scale",))
    np.testing.assert_array_equal(got.values["block.0.mlp.mlp1_weight.blocks"], 2 * pairs(blocks.reshape(8, 16)))


def test_parts_of_torchaos_tensors_in_a_pickle(read: Reader) -> None:
    raw, scale, packed, block = codes(4, 8), f32(4, 1), codes(150, 40), codes(150, 5)
    got = read(
        {
            "a.weight": ("F8_E4M3", raw), "a.weight#scale": ("F32", scale),
            "b.weight": ("U8", packed), "b.weight#scale": ("F8_E4M3", in_tiles(block).reshape(64, 32)),
        }
    )  # fmt: skip
    assert got.convention.dialect == "torchao" and "order of tensor cores" in got.said
    np.testing.assert_array_equal(got.values["a.weight"], e4m3(raw) * scale)
    np.testing.assert_array_equal(got.values["b.weight"], pairs(packed) * np.repeat(e4m3(block), 16, axis=1))
