"""Holes in the matrix of layers x experts x roles, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fp8debug.analysis.checkpoint.checks.completeness import completeness
from fp8debug.analysis.checkpoint.checks.hit import Subject
from fp8debug.analysis.checkpoint.checks.lost_scales import lost_scales
from fp8debug.analysis.checkpoint.checks.numbering import numbering

SubjectOf = Callable[..., Subject]
Headers = dict[str, tuple[str, tuple[int, ...]]]


def experts(layers: int, n: int) -> Headers:
    headers: Headers = {}
    for layer in range(layers):
        for expert in range(n):
            for role in ("w1", "w2", "w3"):
                module = f"model.layers.{layer}.mlp.experts.{expert}.{role}"
                headers[f"{module}.weight"] = ("F8_E4M3", (128, 128))
                headers[f"{module}.weight_scale"] = headers[f"{module}.input_scale"] = ("F32", ())
    return headers


def messages(subject: Subject) -> list[str]:
    return [hit.place.message for check in (lost_scales, completeness, numbering) for hit in check(subject)]


def test_a_whole_model_has_no_holes(subject_of: SubjectOf) -> None:
    assert messages(subject_of(experts(4, 8))) == []


def test_one_expert_without_input_scale_is_named_with_its_place(subject_of: SubjectOf) -> None:
    headers = experts(1, 4)
    del headers["model.layers.0.mlp.experts.2.w1.input_scale"]
    (hit,) = lost_scales(subject_of(headers))
    assert hit.place.message.startswith("MISSING input_scale: layer 0 expert 2 (1 of 4)")
    assert (hit.severity, hit.place.tensor) == ("error", "model.layers.0.mlp.experts.2.w1.input_scale")


def test_one_expert_without_a_role_and_one_that_is_not_there(subject_of: SubjectOf) -> None:
    headers = {
        name: header
        for name, header in experts(4, 8).items()
        if "layers.1.mlp.experts.3.w2" not in name and "layers.2.mlp.experts.7." not in name
    }
    assert messages(subject_of(headers)) == [
        "MISSING w2: layer 1 expert 3 (1 of 31), in model.layers.1.mlp.experts.3.",
        "model.layers.2.mlp.experts has no 7 in layer 2: 0-6 are there.",
    ]


def test_a_layer_that_is_not_there(subject_of: SubjectOf) -> None:
    headers = {name: header for name, header in experts(6, 3).items() if "layers.2." not in name}
    assert messages(subject_of(headers)) == ["model.layers has no 2: 0-1, 3-5 are there."]


def test_three_of_eight_experts_without_input_scales(subject_of: SubjectOf) -> None:
    headers = experts(1, 8)
    for expert in (1, 4, 6):
        for role in ("w1", "w2", "w3"):
            del headers[f"model.layers.0.mlp.experts.{expert}.{role}.input_scale"]
    assert len(messages(subject_of(headers))) == 9


def test_one_of_two_layers_is_judged_by_all_other_roles(subject_of: SubjectOf) -> None:
    headers = experts(2, 3)
    del headers["model.layers.1.mlp.experts.0.w1.input_scale"]
    attention: Headers = {}
    for layer in (0, 1):
        for role in ("q_proj", "o_proj"):
            module = f"model.layers.{layer}.self_attn.{role}"
            attention[f"{module}.weight"] = ("F8_E4M3", (128, 128))
            attention[f"{module}.weight_scale"] = attention[f"{module}.input_scale"] = ("F32", ())
    del attention["model.layers.0.self_attn.q_proj.input_scale"]
    assert messages(subject_of(headers | attention)) == [
        "MISSING input_scale: layer 1 expert 0 (1 of 6), in model.layers.1.mlp.experts.0.w1.",
        "MISSING input_scale: layer 0 (1 of 2), in model.layers.0.self_attn.q_proj.",
    ]


def test_layers_of_another_format_have_other_scales(read_subject: SubjectOf) -> None:
    headers: Headers = {}
    for layer in range(12):
        module = f"model.layers.{layer}.mlp.up_proj"
        headers[f"{module}.input_scale"] = ("F32", ())
        if layer in (0, 11):
            headers[f"{module}.weight"], headers[f"{module}.weight_scale"] = ("F8_E4M3", (64, 64)), ("F32", ())
        else:
            headers[f"{module}.weight"], headers[f"{module}.weight_scale"] = ("U8", (64, 32)), ("F8_E4M3", (64, 4))
            headers[f"{module}.weight_scale_2"] = ("F32", ())
    assert messages(read_subject(headers, dialect="modelopt")) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_hidden_layers": 8, "num_local_experts": 4}, "model.layers has no 6-7: 0-5 are there."),
        ({"num_hidden_layers": 6, "n_routed_experts": 5}, "model.layers.0.mlp.experts has no 4 in layer 0: 0-3 are"),
        ({"text_config": {"num_hidden_layers": 7}}, "model.layers has no 6: 0-5 are there."),
        ({"num_hidden_layers": 48, "num_experts": 128}, ""),  # a part of it
        ({"num_hidden_layers": 5, "num_experts": 4}, ""),  # one layer more, which predicts a further token
        ({"num_hidden_layers": "six", "num_experts": None, "text_config": []}, ""),
    ],
)
def test_what_is_configured_beyond_the_last(subject_of: SubjectOf, config: dict[str, Any], expected: str) -> None:
    found = messages(subject_of(experts(6, 4), configs={"config.json": config}))
    assert bool(found) == bool(expected) and expected in " ".join(found)


def test_an_expert_that_every_layer_lacks(subject_of: SubjectOf) -> None:
    headers = {name: header for name, header in experts(4, 8).items() if "experts.3." not in name}
    assert len(messages(subject_of(headers))) == 4


def test_scales_that_many_layers_lack_are_of_another_kind(subject_of: SubjectOf) -> None:
    headers = {name: header for name, header in experts(4, 8).items() if "layers.0." not in name}
    for layer in (1, 2):
        for expert in range(8):
            del headers[f"model.layers.{layer}.mlp.experts.{expert}.w1.input_scale"]
    assert messages(subject_of(headers)) == []


def test_steps_of_a_sequence_may_differ_and_leave_numbers_out(subject_of: SubjectOf) -> None:
    headers: Headers = {}
    for step in (0, 1, 3, 4, 6):
        headers[f"net.layers.{step}.weight"] = ("BF16", (8, 8))
        if step != 3:
            headers[f"net.layers.{step}.bias"] = ("BF16", (8,))
            headers[f"features.{step}.bias"] = ("BF16", (8,))
        headers[f"features.{step}.weight"] = ("BF16", (8, 8))
    assert messages(subject_of(headers)) == []


def test_kinds_of_attention_and_a_last_block_that_is_cut_are_no_holes(subject_of: SubjectOf) -> None:
    headers: Headers = {}
    for layer in range(24):
        kind = ("q_proj", "k_proj", "o_proj") if layer % 6 == 5 else ("q_proj", "k_proj", "v_proj", "o_proj")
        for role in kind:
            headers[f"model.layers.{layer}.self_attn.{role}.weight"] = ("BF16", (8, 8))
        context = ("qkv",) if layer == 23 else ("qkv", "proj")
        for role in context:
            headers[f"joint_blocks.{layer}.attn.{role}.weight"] = ("BF16", (8, 8))
    assert messages(subject_of(headers)) == []


def test_strange_numbers_cost_nothing(subject_of: SubjectOf) -> None:
    strange = [f"model.layers.{number}.mlp.up.weight" for number in ("0", "1", "2", "999999999", "9" * 5000, "*", "")]
    assert messages(subject_of(dict.fromkeys(strange, ("BF16", (8, 8))))) == []
