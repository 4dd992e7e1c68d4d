"""What is assumed is said, what two readings fit is refused, what fits nothing is kept out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fp8debug.analysis.checkpoint.dialects import LEVELS, dialects
from fp8debug.analysis.checkpoint.records import LAYOUTS, SCALE_KINDS
from fp8debug.analysis.checkpoint.store import BITS
from fp8debug.errors import UsageError
from fp8debug.formats import FORMATS

Reader = Callable[..., Any]
RNG = np.random.default_rng(4)


def codes(*shape: int) -> npt.NDArray[np.uint8]:
    return RNG.integers(0, 0x7F, shape).astype(np.uint8)


def f32(*shape: int) -> npt.NDArray[np.float32]:
    return RNG.uniform(0.5, 2, shape).astype(np.float32)


def test_a_model_in_high_precision_has_no_dialect_and_nothing_is_assumed(read: Reader) -> None:
    got = read(
        {
            "model.embed_tokens.weight": ("BF16", f32(8, 4)), "model.norm.weight": ("F32", f32(4)),
            "model.norm.scale": ("BF16", f32(4)), "logit_scale": ("F32", np.array(2.6)),
            "m.layer_scale": ("F32", f32(4)), "bn.num_batches_tracked": ("I64", np.array(3)),
            "a.lora_A.weight": ("BF16", f32(2, 4)), "a.exp_avg": ("BF16", f32(2, 4)),
        }
    )  # fmt: skip
    convention = got.convention
    assert (convention.dialect, convention.quantised, convention.orphan_scales, got.said) == (None, (), (), "")
    assert convention.unknown == ("a.exp_avg",) and len(convention.plain) == 8


def test_scales_of_the_cache_alone_do_not_hide_codes_that_lack_theirs(read: Reader) -> None:
    got = read({"a.k_proj.weight": ("F8_E4M3", codes(4, 8)), "a.k_scale": ("F32", f32()), "a.v_scale": ("F32", f32())})
    assert [one.name for one in got.convention.quantised] == ["a.k_proj.weight"] and got.convention.unknown == ()
    assert "1 tensor is stored as codes, with no scale beside them" in got.convention.why


def test_codes_without_any_scale_are_values_and_that_is_said(read: Reader) -> None:
    got = read(
        {"a.weight": ("F8_E5M2", codes(4, 8)), "a.bias": ("F8_E5M2", codes(4)), "clip.logit_scale": ("F16", f32())}
    )
    assert got.convention.dialect == "cast" and len(got.convention.quantised) == 2
    assert "no scale is stored for any of 2 tensors of codes; codes taken as values" in got.said


def test_scales_without_codes_are_orphans(read: Reader) -> None:
    got = read(
        {
            "a.weight": ("BF16", f32(4, 8)),
            "a.weight_scale_inv": ("F32", f32(1, 1)),
            "b.weight_scale_inv": ("F32", f32(1)),
        }
    )
    assert set(got.convention.orphan_scales) == {"a.weight_scale_inv", "b.weight_scale_inv"}
    assert got.convention.quantised == () and got.convention.plain == ("a.weight",)


def test_scales_of_the_cache_alone(read: Reader) -> None:
    got = read(
        {"a.k_proj.weight": ("BF16", f32(4, 4)), "a.attn.k_scale": ("F32", f32(1)), "a.attn.v_scale": ("F32", f32(1))}
    )
    assert [(one.kind, one.module) for one in got.convention.scales] == [("k", "a.attn"), ("v", "a.attn")]
    assert (got.convention.dialect, got.convention.quantised, got.said) == ("activations", (), "")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"a.scale": ("F32", f32(1))}, "a.scale multiplies in one and divides in the other"),
        (
            {"a.weight_zoom_scale": ("F32", f32(1))},
            "codes are in 1 of 2 tensors, and a.weight_zoom_scale beside them may be",
        ),
        ({"a.weight_scale_inv": ("U8", codes(1, 3))}, "is stored as U8, and nothing says what its bytes mean"),
    ],
)
def test_what_two_readings_fit_or_none_is_refused_with_what_would_settle_it(
    other: dict[str, Any], why: str, read: Reader
) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        read({"a.weight": ("F8_E4M3", codes(8, 300)), **other})
    assert "--as" in str(refused.value)


def test_what_is_refused_is_read_when_somebody_says_how(read: Reader) -> None:
    raw = {"a.weight": ("F8_E4M3", np.full((2, 3), 0x38, np.uint8)), "a.scale": ("F32", np.array([4.0]))}
    assert read(raw, dialect="divides").values["a.weight"][0, 0] == 0.25
    assert read(raw, dialect="multiplies").values["a.weight"][0, 0] == 4
    assert read(raw, dialect="cast").convention.unknown == ()


def test_a_dialect_that_explains_nothing_says_so_in_numbers(read: Reader) -> None:
    got = read({"a.weight": ("F8_E4M3", codes(2, 3)), "a.weight_scale_inv": ("F32", f32(1))}, dialect="gpt-oss")
    assert "GPT-OSS (MXFP4) explains nothing in it: of 2 tensors, 0 hold codes" in got.said
    with pytest.raises(UsageError, match="no such dialect; did you mean deepseek"):
        read({"a": ("F32", f32(1))}, dialect="deapseek")


def test_a_line_or_a_column_of_a_square_matrix(read: Reader) -> None:
    square = {"a.weight": ("F8_E4M3", codes(4, 4)), "a.weight_scale": ("F32", f32(4))}
    got = read(square)
    assert got["a.weight"].scales[0].layout == "line" and "though the matrix is square" in got.said
    with pytest.raises(UsageError, match="one number for each line or for each column of a square matrix"):
        read(square, dialect="multiplies")
    beside = {"b.weight": ("F8_E4M3", codes(4, 6)), "b.weight_scale": ("F32", f32(6))}
    assert read({**square, **beside}, dialect="multiplies")["a.weight"].scales[0].layout == "column"


def test_a_grid_stored_columns_first_is_read_so_and_said(read: Reader) -> None:
    raw, scale = np.full((300, 100), 0x38, np.uint8), f32(1, 3)
    got = read({"a.weight": ("F8_E4M3", raw), "a.weight_scale_inv": ("F32", scale)}, {"quant_method": "fp8"})
    assert got["a.weight"].scales[0].is_transposed and "stored columns first" in got.said
    np.testing.assert_array_equal(got.values["a.weight"][:, 0], np.repeat(scale[0], 128)[:300])


def test_a_grid_of_no_block_size_is_kept_out_and_no_size_made_up_for_it(read: Reader) -> None:
    """1000 lines with 10 scales could be blocks of 100; nobody writes such."""
    got = read(
        {
            "a.weight": ("F8_E4M3", codes(1000, 128)), "a.weight_scale_inv": ("F32", f32(10, 1)),
            "b.weight": ("F8_E4M3", codes(1000, 128)), "b.weight_scale_inv": ("F32", f32(8, 1)),
        }
    )  # fmt: skip
    (misfit,) = got.convention.misfits
    assert (misfit.tensor, misfit.shape, misfit.expected) == ("a.weight", (10, 1), ((8, 1),))
    assert got["a.weight"].scales == () and got["b.weight"].scales[0].block == (128, 128)


def test_a_block_size_other_than_the_configuration_states_is_no_fit(read: Reader) -> None:
    tensors = {"a.weight": ("F8_E4M3", codes(256, 256)), "a.weight_scale_inv": ("F32", f32(4, 4))}
    got = read(tensors, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert got["a.weight"].scales == () and got.convention.misfits[0].expected == ((2, 2),)
    silent = read(tensors, {"quant_method": "fp8"})
    assert silent["a.weight"].scales[0].block == (64, 64)
    assert "64 x 64 taken, the only size in use that goes with the shapes of all" in silent.said


def test_a_configuration_is_believed_though_no_scale_is_there(read: Reader) -> None:
    got = read({"a.weight": ("F8_E4M3", codes(4, 8))}, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    assert (got.convention.dialect, got.convention.block, got["a.weight"].scales) == ("deepseek", (128, 128), ())


def test_names_overrule_a_configuration_under_which_nothing_would_have_a_scale(read: Reader) -> None:
    tensors = {"a.weight": ("F8_E4M3", codes(4, 8)), "a.weight_scale_inv": ("F32", f32(1, 1))}
    got = read(tensors, {"quant_method": "compressed-tensors"})
    assert got.convention.dialect == "deepseek"
    assert "quant_method is compressed-tensors, and read so no code would have a scale" in got.said


def test_a_second_scale_of_the_same_codes_is_not_applied_twice(read: Reader) -> None:
    got = read(
        {
            "a.weight": ("F8_E4M3", codes(4, 8)), "a.weight_scale_inv": ("F32", np.array([0.5])),
            "a.weight_scale": ("F32", np.array([2.0])),
        },
        {"quant_method": "fp8"},
    )  # fmt: skip
    assert [one.name for one in got["a.weight"].scales] == ["a.weight_scale_inv"]
    assert [(one.kind, one.name) for one in got.convention.scales] == [("reciprocal", "a.weight_scale")]


def test_integers_are_named_and_left_alone(read: Reader) -> None:
    got = read(
        {"a.weight": ("I8", np.zeros((4, 8), np.int8)), "a.weight_scale": ("F32", f32(4, 1))},
        {"quant_method": "compressed-tensors"},
    )
    assert (got.convention.quantised, got.convention.orphan_scales) == ((), ())
    assert "a.weight" in got.convention.unknown and "not looked at: integers, 2 tensors" in got.said


@pytest.mark.parametrize(
    "config", [None, [], "fp8", {"quant_method": ["fp8"]}, {"quant_method": "fp8", "weight_block_size": [128, "x", -1]}]
)
def test_configurations_that_mean_nothing_do_no_harm(config: Any, read: Reader) -> None:
    got = read({"a.weight": ("F8_E4M3", codes(4, 8)), "a.weight_scale_inv": ("F32", f32(1, 1))}, config)
    assert got.convention.dialect == "deepseek" and got.convention.block is None


def test_what_the_files_of_dialects_say_is_known() -> None:
    assert len(dialects()) >= 10
    for dialect in dialects().values():
        assert all(sign.level in LEVELS and (sign.config or sign.metadata or sign.tail) for sign in dialect.signs)
        assert {dtype for one in dialect.scales for dtype in one.dtypes} | dialect.code_dtypes <= set(BITS)
        assert {fmt for one in dialect.codes for fmt in one.formats.values()} <= set(FORMATS)
        for scale in dialect.scales:
            assert scale.kind in SCALE_KINDS and set(scale.layouts) <= set(LAYOUTS)
            assert all(len(block) == 2 for block in scale.blocks)
