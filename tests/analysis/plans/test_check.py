"""Which layers an entry of a plan file takes, and which it was hardly meant to take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fp8debug.analysis.plans import TARGETS, export
from fp8debug.analysis.plans.check import Check, check_file
from fp8debug.analysis.plans.rules import regex_rules, whole_numbers
from fp8debug.errors import UsageError
from fp8debug.plans import Plan, PlanEntry
from fp8debug.rundir import LayerInfo

CheckText = Callable[..., Check]


@pytest.fixture
def gpt(make_layer: Any) -> list[LayerInfo]:
    """`layers.0` to `layers.11` with two Linear layers each, and a head."""
    names = [f"layers.{i}.{part}" for i in range(12) for part in ("attention.wq", "mlp.w1")]
    return [make_layer(name) for name in (*names, "output")]


@pytest.fixture
def check_text(tmp_path: Path, gpt: list[LayerInfo]) -> CheckText:
    """Holds a text against `gpt`."""

    def check(text: str, layers: list[LayerInfo] | None = None, names: Any = "te") -> Check:
        path = tmp_path / "plan"
        path.write_text(text, encoding="utf-8", newline="")
        return check_file(path, gpt if layers is None else layers, names)

    return check


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_written_is_read_back(target: str, plan: Plan, layers: list[LayerInfo], check_text: CheckText) -> None:
    found = check_text(export(plan, target, layers).text, layers)
    planned = {entry.layer for entry in plan.entries}
    assert found.format == target and found.problems == ()
    assert {name for rule in found.rules for name in rule.matched} - planned == (
        {"blocks.10"} if target == "torchtitan" else set()
    )
    assert [rule.beyond for rule in found.rules if rule.beyond] == ([("blocks.10",)] if target == "torchtitan" else [])
    assert found.is_clean is (target != "torchtitan")
    assert set(found.left) == {layer.name for layer in layers} - planned - {
        name for rule in found.rules for name in rule.beyond
    }
    # Of a model that lacks one of the layers, that entry matches nothing, also where one section holds several.
    fewer = check_text(
        export(plan, target, layers).text, [layer for layer in layers if layer.name != plan.entries[1].layer]
    )
    assert [len(rule.matched) for rule in fewer.rules].count(0) == 1 and not fewer.is_clean
    nothing = check_text(export(Plan("current"), target, layers).text, layers)
    assert nothing.is_clean and nothing.rules == () and len(nothing.left) == len(layers)


def test_substrings(check_text: CheckText) -> None:
    found = check_text('[float8]\nfilter_fqns = ["layers.1", "attention.w", "w1", "out", "wk", "auto_filter_small_kn"]')
    one, part, word, prefix, nothing = found.rules
    assert one.matched == tuple(f"layers.{i}.{p}" for i in (1, 10, 11) for p in ("attention.wq", "mlp.w1"))
    assert one.beyond == one.matched[2:]
    assert (len(part.matched), part.beyond) == (12, ()) and (len(word.matched), word.beyond) == (12, ())
    assert prefix.matched == ("output",) and prefix.is_clean
    assert nothing.matched == () and nothing.nearest != () and not nothing.is_clean
    assert found.left == ()


def test_globs(check_text: CheckText) -> None:
    found = check_text(
        """
configs:
  bf16: {transformer_engine_config_type: TEQuantizationParams, training_recipe: {}}
  late: {transformer_engine_config_type: TEQuantizationParams, training_recipe: {fp8_quantization_recipe: delayed}}
matchers:
  numbered: {config: bf16, type: glob, pattern: "*layers.1*", enabled: true}
  quiet: {config: bf16, type: glob, pattern: "*w1"}
  meant: {config: bf16, type: glob, pattern: "*w1", enabled: false}
  class: {config: bf16, type: glob, pattern: "layers[2].mlp.w1", enabled: true}
  again: {config: late, type: glob, pattern: "layers.1.*", enabled: true}
  lost: {config: fp9, type: glob, pattern: "output", enabled: true}
"""
    )
    by_place = {rule.place: rule for rule in found.rules}
    assert by_place.keys() == {"numbered", "class", "again", "lost"}
    assert {name.split(".")[1] for name in by_place["numbered"].beyond} == {"10", "11"}
    assert by_place["class"].matched == () and by_place["class"].nearest[0] == "layers.2.mlp.w1"
    assert by_place["again"].note == "never decides: numbered before it takes what it matches"
    assert found.problems == (
        "matcher quiet is off: it has no `enabled: true`",
        "config late is refused: delayed scaling cannot be the recipe of a module",
        "matcher lost names the config 'fp9', which there is none of",
    )


def test_a_literal_path_of_several_pipeline_stages(make_layer: Any, check_text: CheckText) -> None:
    stages = [make_layer(f"decoder.layers.{i}.fc", raw_name=f"decoder.layers.{i % 2}.fc") for i in range(4)]
    plan = Plan("current", (PlanEntry("decoder.layers.1.fc", "bf16"),))
    (rule,) = check_text(export(plan, "megatron", stages).text, stages).rules
    assert rule.matched == ("decoder.layers.1.fc", "decoder.layers.3.fc") and rule.beyond == ("decoder.layers.3.fc",)


def test_sections(make_layer: Any, check_text: CheckText) -> None:
    layers = [make_layer(f"decoder.layers.{i}.mlp.fc1", class_name="TEColumnParallelLinear") for i in range(12)]
    feature = "transformer_engine: {DisableQuantizationGEMM: {enabled: true, gemms: [fprop]}}"
    found = check_text(
        f"""
one: {{enabled: true, layers: {{layer_name_regex_pattern: 'layers\\.1|layers\\.3\\.'}}, {feature}}}
two: {{enabled: true, layers: {{layer_types: [fc1], layer_numbers: [3, "5-6"]}}, {feature}}}
three: {{layers: {{layer_types: [fc1]}}, {feature}}}
four: {{enabled: true, layers: {{layer_types: [fc2]}}, transformer_engine: {{LogTensorStats: {{enabled: true}}}}}}
five: {{enabled: false, layers: {{layer_types: [fc1]}}}}
""",
        layers,
    )
    first, second, types, logged = found.rules
    assert [name.split(".")[2] for name in first.matched] == ["0", "9", "10", "11"]  # Megatron's 1, 10, 11 and 12
    assert [name.split(".")[2] for name in first.beyond] == ["9", "10", "11"]
    assert second.matched == ("decoder.layers.2.mlp.fc1",) and second.is_clean
    assert [name.split(".")[2] for name in types.matched] == ["2", "4", "5"]
    assert first.does == "fprop in bf16" and logged.does == "precision as it is" and logged.matched == ()
    assert found.problems == (
        "section three is refused: it needs `enabled` and `layers`",
        "sections one and two both match decoder.layers.2.mlp.fc1: nvdlfw_inspect stops the training over that",
    )
    assert len(found.left) == 12 - 7


def test_names_of_te_and_of_the_model(check_text: CheckText) -> None:
    text = "a: {enabled: true, layers: {layer_name_regex_pattern: '^output$'}}"
    found = check_text(text)
    assert found.problems == ("no entry matches an inferred name; with --names model they match output",)
    assert check_text(text, names="model").is_clean
    exact = check_text("a: {enabled: true, layers: {exact_layer_names: [model.output]}}")
    assert exact.rules[0].matched == ("output",) and "stops the training at the first layer" in exact.problems[0]
    bad = check_text("a: {enabled: true, layers: {layer_name_regex_pattern: '(('}}\nb: {enabled: false, layers: {}}")
    assert bad.problems[0].startswith("section a is refused: missing )")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import torch\ndef keep(module, fqn):\n    return True\n", "has no HIGH_PRECISION, and fp8debug runs no file"),
        ("HIGH_PRECISION = names()\n", "HIGH_PRECISION is no tuple of names"),
        ("", "is no plan that fp8debug knows; expected a file of"),
        ("key: [1", "not TOML, not Python, and not YAML: while parsing"),
        ('recipe = "current"\n[[entry]]\nlayer = 3', "layer = 3; expected a text"),
    ],
)
def test_no_plan(text: str, words: str, check_text: CheckText) -> None:
    with pytest.raises(UsageError, match=words):
        check_text(text)


def test_alternatives_and_whole_numbers() -> None:
    def texts(pattern: str) -> list[str]:
        return [rule.text for rule in regex_rules(pattern, "", "")]

    assert texts(r"a\|b|[|]c|(d|e)") == [r"a\|b", "[|]c", "(d|e)"]
    assert texts(r"^x\.(?:(?:m|n)\.)*(?:a|b(?:c|d)?)$") == ["a", "b(?:c|d)?"]
    assert texts("^(a|b)$") == ["^(a|b)$"]
    strict = whole_numbers(r"[0-9]{2}(?P<n1>x)\1layers.1")
    assert strict is not None and strict.pattern == r"[0-9]{2}(?P<n1>x)\1layers.(?:(?<!\d)1(?!\d))"
    assert whole_numbers(r"[12]\.{3}") is None
