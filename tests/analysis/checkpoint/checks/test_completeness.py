"""Holes in the matrix of layers x experts x roles, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable

from fp8debug.analysis.checkpoint.checks.completeness import completeness
from fp8debug.analysis.checkpoint.checks.hit import Subject
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
    return [hit.place.message for check in (completeness, numbering) for hit in check(subject)]


def test_a_whole_model_has_no_holes(subject_of: SubjectOf) -> None:
    assert messages(subject_of(experts(4, 8))) == []


def test_one_expert_without_input_scale_is_named_with_its_place(subject_of: SubjectOf) -> None:
    headers = experts(1, 4)
    del headers["model.layers.0.mlp.experts.2.w1.input_scale"]
    (hit,) = completeness(subject_of(headers))
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
