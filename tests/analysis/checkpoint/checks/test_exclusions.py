"""Lists of the configuration against what the file has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fp8debug.analysis.checkpoint.checks.exclusions import exclusions
from fp8debug.analysis.checkpoint.checks.hit import Hit, Subject
from fp8debug.analysis.checkpoint.checks.patterns import Pattern, may_be_endless
from fp8debug.analysis.checkpoint.checks.unmatched import unmatched

SubjectOf = Callable[..., Subject]
Headers = dict[str, tuple[str, tuple[int, ...]]]


def hf(excluded: Sequence[str]) -> dict[str, Any]:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": list(excluded)}
    return {"config.json": {"quantization_config": quantised}}


def compressed(ignore: Sequence[str], targets: Sequence[str] = ("Linear",)) -> dict[str, Any]:
    groups = {"group_0": {"targets": list(targets), "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}}
    table = {"quant_method": "compressed-tensors", "ignore": list(ignore), "config_groups": groups}
    return {"config.json": {"quantization_config": table}}


def modelopt(excluded: Sequence[str]) -> dict[str, Any]:
    table = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": list(excluded)}}
    return {"hf_quant_config.json": table}


def layers(n: int, roles: dict[str, bool], scale: str = "weight_scale_inv", prefix: str = "model.") -> Headers:
    headers: Headers = {"lm_head.weight": ("BF16", (512, 256)), f"{prefix}embed_tokens.weight": ("BF16", (512, 256))}
    grid = ("F32", (2, 2)) if scale == "weight_scale_inv" else ("F32", ())
    for layer in range(n):
        headers[f"{prefix}layers.{layer}.input_layernorm.weight"] = ("BF16", (256,))
        for role, is_codes in roles.items():
            name = f"{prefix}layers.{layer}.{role}"
            headers[f"{name}.weight"] = ("F8_E4M3" if is_codes else "BF16", (256, 256))
            if is_codes:
                headers[f"{name}.{scale}"] = grid
    return headers


def hits_of(subject: Subject) -> dict[str, list[Hit]]:
    found: dict[str, list[Hit]] = {}
    for check in (exclusions, unmatched):
        for hit in check(subject):
            found.setdefault(hit.check, []).append(hit)
    return found


@pytest.mark.parametrize(
    ("dialect", "pattern", "module", "how"),
    [
        ("deepseek", "mlp.gate", "model.layers.0.mlp.gate", "whole"),
        ("deepseek", "mlp.gate", "model.layers.0.mlp.gate_up_proj", "part"),
        ("deepseek", "model.layers.1", "model.layers.1.mlp.up_proj", "whole"),
        ("deepseek", "model.layers.1", "model.layers.11.mlp.up_proj", "part"),
        ("deepseek", r"model\.layers\.\d+\.mlp\.gate", "model.layers.3.mlp.gate", "whole"),
        ("deepseek", "gate", "model.layers.0.mlp.experts.1.up_proj", None),
        ("compressed-tensors", "mlp.gate", "model.layers.0.mlp.gate", None),
        ("compressed-tensors", "re:.*mlp.gate", "model.layers.0.mlp.gate", "whole"),
        ("compressed-tensors", "re:.*mlp.gate", "model.layers.0.mlp.gate_proj", "part"),
        ("compressed-tensors", "re:.*mlp.gate$", "model.layers.0.mlp.gate_proj", None),
        ("compressed-tensors", "re:vision_tower.*", "vision_tower.blocks.0.fc1", "whole"),
        ("modelopt", "model.layers.1*", "model.layers.1.mlp.up_proj", "whole"),
        ("modelopt", "model.layers.1*", "model.layers.12.mlp.up_proj", "part"),
        ("modelopt", "*lm_head*", "lm_head", "whole"),
        ("modelopt", "model.layers.0.self_attn*", "model.layers.0.self_attn.q_proj", "whole"),
    ],
)
def test_patterns_match_as_their_readers_do(dialect: str, pattern: str, module: str, how: str | None) -> None:
    assert Pattern(pattern, dialect).how(module) == how


def test_agreement_says_nothing(read_subject: SubjectOf) -> None:
    headers = layers(4, {"mlp.gate": False, "mlp.up_proj": True})
    assert hits_of(read_subject(headers, configs=hf(["lm_head", "mlp.gate"]))) == {}


def test_codes_of_an_excluded_layer_are_an_error(read_subject: SubjectOf) -> None:
    headers = layers(4, {"mlp.down_proj": True, "mlp.up_proj": True})
    (hit,) = hits_of(read_subject(headers, configs=hf(["lm_head", "model.layers.2.mlp.down_proj"])))[
        "excluded_but_codes"
    ]
    assert hit.place.message == (
        "model.layers.2.mlp.down_proj: the configuration says high precision (`model.layers.2.mlp.down_proj`), "
        "the file says F8_E4M3."
    )


def test_a_layer_left_in_high_precision_without_being_listed(read_subject: SubjectOf) -> None:
    headers = layers(4, {"mlp.down_proj": True, "mlp.up_proj": True})
    headers["model.layers.1.mlp.down_proj.weight"] = ("BF16", (256, 256))
    del headers["model.layers.1.mlp.down_proj.weight_scale_inv"]
    found = hits_of(read_subject(headers, configs=hf(["lm_head"])))
    assert [hit.place.tensor for hit in found["quantised_but_not_codes"]] == ["model.layers.1.mlp.down_proj.weight"]
    listed = hf(["lm_head", "model.layers.1.mlp.down_proj"])
    assert hits_of(read_subject(headers, configs=listed)) == {}
    assert hits_of(read_subject(headers, dialect="deepseek")) == {}  # no configuration says anything
    listed["config.json"]["num_hidden_layers"] = 1
    listed["config.json"]["quantization_config"]["modules_to_not_convert"] = ["lm_head"]
    assert hits_of(read_subject(headers, configs=listed)) == {}  # a layer beyond the last


def test_a_target_by_name_that_is_not_quantised_anywhere(read_subject: SubjectOf) -> None:
    headers = layers(3, {"mlp.down_proj": False, "mlp.up_proj": True}, "weight_scale")
    found = hits_of(read_subject(headers, configs=compressed(["lm_head"], ["re:.*(up|down)_proj$"])))
    assert len(found["quantised_but_not_codes"]) == 3
    assert hits_of(read_subject(headers, configs=compressed(["lm_head"]))) == {}


@pytest.mark.parametrize("is_codes", [True, False])
def test_a_pattern_for_the_router_also_takes_the_projection(read_subject: SubjectOf, is_codes: bool) -> None:
    headers = layers(56, {"mlp.gate": False, "mlp.gate_up_proj": is_codes, "mlp.down_proj": True})
    (hit,) = hits_of(read_subject(headers, configs=hf(["lm_head", "mlp.gate"])))["pattern_meant_for_another"]
    assert "`mlp.gate` is a part of model.layers.0.mlp.gate_up_proj (56 such modules" in hit.place.message
    assert "pattern meant for another module?" in hit.place.message
    single = [f"model.layers.{layer}.mlp.gate" for layer in range(56)]
    (hit,) = hits_of(read_subject(headers, configs=hf(single)))["pattern_meant_for_another"]
    assert hit.place.numbers["n"] == 56


def test_patterns_written_with_another_prefix_are_one_hit(read_subject: SubjectOf) -> None:
    headers = layers(4, {"mlp.gate": False, "mlp.up_proj": True}, prefix="model.language_model.")
    patterns = ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in range(4))]
    found = hits_of(read_subject(headers, configs=hf(patterns)))
    (hit,) = found.pop("pattern_with_other_prefix")
    assert found == {}
    assert hit.place.message == (
        "4 entries match nothing: they are written for names that begin with `model.`, the file's begin with "
        "`model.language_model.`. `model.layers.0.mlp.gate` would be model.language_model.layers.0.mlp.gate, which the "
        "file has in BF16; a reader that compares names takes it as quantised."
    )


def test_a_regular_expression_that_misses_the_prefix(read_subject: SubjectOf) -> None:
    headers = layers(3, {"self_attn.q_proj": True}, "weight_scale") | {
        f"model.vision_tower.layers.{n}.fc1.weight": ("BF16", (256, 256)) for n in range(2)
    }
    (hit,) = hits_of(read_subject(headers, configs=compressed(["lm_head", "re:vision_tower.*"])))[
        "pattern_with_other_prefix"
    ]
    assert hit.place.numbers["file_prefix"] == "model."


def test_a_misspelt_pattern_is_told_with_what_is_near_and_others_are_notes(read_subject: SubjectOf) -> None:
    headers = layers(3, {"mlp.gate": False, "mlp.up_proj": True})
    patterns = ["lm_head", "mlp.gate", "model.layers.0.mlp.gates", "model.layers.0.mlp.act_fn", "re:(", "visual"]
    found = hits_of(read_subject(headers, configs=hf(patterns)))
    by_pattern = {hit.place.tensor: hit for hit in found["pattern_matches_nothing"]}
    assert by_pattern.keys() == {"model.layers.0.mlp.gates", "model.layers.0.mlp.act_fn", "re:(", "visual"}
    assert "nearest: model.layers.0.mlp.gate" in by_pattern["model.layers.0.mlp.gates"].place.message
    assert [by_pattern[name].severity for name in by_pattern].count("warning") == 2


def test_wildcards_of_modelopt(read_subject: SubjectOf) -> None:
    headers = layers(12, {"self_attn.q_proj": True, "mlp.gate": False}, "weight_scale")
    for layer in (1,):
        headers[f"model.layers.{layer}.self_attn.q_proj.weight"] = ("BF16", (256, 256))
        del headers[f"model.layers.{layer}.self_attn.q_proj.weight_scale"]
    found = hits_of(read_subject(headers, configs=modelopt(["lm_head", "model.layers.1*", "*mlp.gate*"])))
    (hit,) = found.pop("pattern_meant_for_another")
    assert (hit.place.numbers["n"], found) == (2, {})  # layers 10 and 11
    assert hits_of(read_subject(headers, configs=modelopt(["lm_head", "model.layers.1.*", "*mlp.gate*"]))) == {}


def test_what_ran_is_held_against_both(read_subject: SubjectOf) -> None:
    headers = layers(3, {"mlp.gate": False, "mlp.up_proj": True})
    subject = read_subject(headers, configs=hf(["lm_head", "mlp.gate"]))
    ran = {"model.layers.0.mlp.up_proj": "BF16", "model.layers.1.mlp.up_proj": "F8_E4M3", "lm_head": "BF16"}
    (hit,) = hits_of(replace(subject, ran=ran))["ran_in_other_precision"]
    assert hit.place.message == (
        "model.layers.0.mlp.up_proj: the configuration says quantised, the file says F8_E4M3, run time says BF16."
    )


@pytest.mark.parametrize(
    ("regex", "may_be"),
    [
        (r".*\.(q|k|v|o)_proj$", False),
        (r"model\.layers\.(?:[0-9]|1[0-9])\.mlp\..*", False),
        (r".*layers.*mlp.*gate.*", False),
        (r"(a+)+$", True),
        (r"((ab*)c)*$", True),
        (r"(a|aa)+$", True),
        (r".*" * 20, True),
    ],
)
def test_expressions_that_may_take_for_ever(regex: str, may_be: bool) -> None:
    assert may_be_endless(regex) == may_be


@pytest.mark.parametrize(
    ("regex", "module", "how"),
    [
        (r"(a+)+$", "a" * 1000 + "b", None),
        (r"(a+)+$", "a" * 1000, "whole"),
        (r".*" * 11 + "zz", "model.layers.0.mlp.up_proj" * 40, None),
        (r".*\.(\w+_)*proj.*\d", "model.up_proj.3", "whole"),
        (r"(?:.*)(?i)x", "", None),
        (r"(?!.*lm_head).*", "lm_head", None),
        (r"(?!.*lm_head).*", "model.up_proj", "whole"),
        (r"(?!x)(a+)+$", "a" * 1000 + "b", None),
        (r"(.*)(.*)(.*)(.*)\1z", "a" * 1000, None),
    ],
)
def test_expressions_of_strangers_end(regex: str, module: str, how: str | None) -> None:
    assert Pattern(f"re:{regex}", "compressed-tensors").how(module) == how


@pytest.mark.parametrize("regex", [r"(?!x)(a+)+$", r"(.*)(.*)(.*)(.*)\1z", "a" * 5000])
def test_expressions_that_are_not_tried_are_told(regex: str, read_subject: SubjectOf) -> None:
    headers = layers(2, {"mlp.up_proj": True}, "weight_scale")
    (hit,) = hits_of(read_subject(headers, configs=compressed([f"re:{regex}"])))["pattern_matches_nothing"]
    assert "was not tried" in hit.place.message


def test_formats_of_single_layers_are_no_exclusion_list(read_subject: SubjectOf) -> None:
    headers = layers(4, {"mlp.down_proj": True, "mlp.up_proj": True}, "weight_scale")
    headers["model.layers.1.mlp.down_proj.weight"] = ("BF16", (256, 256))
    del headers["model.layers.1.mlp.down_proj.weight_scale"]
    configs = modelopt(["lm_head"])
    assert "quantised_but_not_codes" in hits_of(read_subject(headers, configs=configs))
    configs["hf_quant_config.json"]["quantization"]["quantized_layers"] = {"model.layers.0.mlp.up_proj": {}}
    assert hits_of(read_subject(headers, configs=configs)) == {}


def test_an_expert_that_is_listed_by_its_own_name(read_subject: SubjectOf) -> None:
    headers = layers(3, {f"mlp.experts.{n}.up_proj": True for n in range(4)})
    name = "model.layers.1.mlp.experts.3.up_proj"
    headers[f"{name}.weight"] = ("BF16", (256, 256))
    del headers[f"{name}.weight_scale_inv"]
    assert hits_of(read_subject(headers, configs=hf(["lm_head", name]))) == {}


def test_a_run_before_quantisation_is_no_disagreement(read_subject: SubjectOf) -> None:
    subject = read_subject(layers(3, {"mlp.up_proj": True}), configs=hf(["lm_head"]))
    ran = {f"model.layers.{layer}.mlp.up_proj": "bfloat16" for layer in range(3)}
    (hit,) = hits_of(replace(subject, ran=ran))["ran_in_other_precision"]
    assert hit.severity == "note" and "None of the 3 layers" in hit.place.message
