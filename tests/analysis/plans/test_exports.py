"""Plans as their targets read them: by the package itself where it is installed, else by the rule of its source."""

from __future__ import annotations

import fnmatch
import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from fp8debug.analysis.plans import export, flops_kept, whole_layers
from fp8debug.analysis.plans.export import Note
from fp8debug.plans import Plan, PlanEntry, read_plan
from fp8debug.rundir import LayerInfo

Layers = list[LayerInfo]


def planned(plan: Plan) -> set[str]:
    return {entry.layer for entry in plan.entries}


# Transformer Engine ------------------------------------------------------------------------------------------------


@pytest.fixture
def te_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Callable[[str], Any]]]:
    """Loads a text with nvdlfw_inspect's own config manager: name of a layer → its features."""
    from nvdlfw_inspect.config_manager import ConfigManager

    features = dict.fromkeys(("DisableQuantizationLayer", "DisableQuantizationGEMM", "PerTensorScaling"))
    registry = {"transformer_engine": SimpleNamespace(features=features), "base": SimpleNamespace(features={})}

    def load(text: str) -> Callable[[str], Any]:
        ConfigManager.reset()
        path = tmp_path / "te.yaml"
        path.write_text(text, encoding="utf-8")
        ConfigManager._load_config(path, registry)
        return lambda name: ConfigManager.get_config_for_layer(name).get("transformer_engine", {})

    quiet = SimpleNamespace(log_message=lambda *_, **__: None)
    monkeypatch.setattr("nvdlfw_inspect.config_manager.get_logger", lambda: quiet)
    yield load
    ConfigManager.reset()


OUT = {"DisableQuantizationLayer": {"enabled": True}}


def test_te_takes_exactly_the_planned_layers(plan: Plan, layers: Layers, te_config: Any) -> None:
    text = export(plan, "te", layers).text
    assert text.count("DisableQuantizationLayer") == 1  # one section for one treatment
    features = te_config(text)
    for layer in layers:
        for wrapper in ("", "module.", "_orig_mod.module."):
            assert features(f"model.{wrapper}{layer.name}") == (OUT if layer.name in planned(plan) else {})
        assert features(layer.name) == features(f"model.another.{layer.name}") == {}
    by_own_name = te_config(export(plan, "te", layers, "model").text)
    assert by_own_name("blocks.1") == OUT and by_own_name("blocks.10") == by_own_name("model.blocks.1") == {}


def test_te_says_operands_where_it_can(te_config: Any) -> None:
    plan = Plan(
        "delayed:te",
        (
            PlanEntry("a", "bf16", gemm="wgrad", reason="r"),
            PlanEntry("b", "current", tensor="dy", reason="r"),
            PlanEntry("c", "delayed:margin=1", tensor="x", reason="r"),
            PlanEntry("d", "current", tensor="w", gemm="dgrad", reason="r"),
            PlanEntry("d", "bf16", gemm="fprop", reason="r"),
            PlanEntry("e", "delayed", tensor="x", reason="what it is in already"),
            PlanEntry("f", "bf16", tensor="dy", reason="r"),
        ),
    )
    done = export(plan, "te", [])
    features = te_config(done.text)
    assert features("model.a") == {"DisableQuantizationGEMM": {"enabled": True, "gemms": ["wgrad"]}}
    gradient = [{"gemm": "dgrad", "tensors": ["gradient"]}, {"gemm": "wgrad", "tensors": ["gradient"]}]
    assert features("model.b") == {"PerTensorScaling": {"enabled": True, "gemms_struct": gradient}}
    assert features("model.c") == {"DisableQuantizationGEMM": {"enabled": True, "gemms": ["fprop", "wgrad"]}}
    assert features("model.d") == {
        "DisableQuantizationGEMM": {"enabled": True, "gemms": ["fprop"]},
        "PerTensorScaling": {"enabled": True, "gemms_struct": [{"gemm": "dgrad", "tensors": ["weight"]}]},
    }
    assert features("model.e") == {}
    assert features("model.f") == {"DisableQuantizationGEMM": {"enabled": True, "gemms": ["dgrad", "wgrad"]}}
    assert [note.layer for note in done.notes] == ["c", "f"]
    for layer, gemm, tensor, change in (
        ("a", "wgrad", "x", "bf16"),
        ("a", "fprop", "x", "delayed:te"),
        ("b", "dgrad", "dy", "current"),
        ("b", "dgrad", "w", "delayed:te"),
        ("c", "fprop", "w", "bf16"),
        ("c", "dgrad", "w", "delayed:te"),
    ):
        assert done.plan.change_of(layer, tensor, gemm) == change
    assert flops_kept(done.plan, {"a": {"fprop": 4, "wgrad": 1}, "b": {"fprop": 5}}) is None  # c, d and f are unknown
    assert "the plan has x in delayed:margin=1, which a section cannot say; fprop and wgrad run in BF16" in done.text
    # Current scaling of single tensors exists under delayed scaling alone.
    other = export(Plan("mxfp8", (PlanEntry("b", "current", tensor="dy", reason="r"),)), "te", [])
    assert te_config(other.text)("model.b") == {
        "DisableQuantizationGEMM": {"enabled": True, "gemms": ["dgrad", "wgrad"]}
    }


def test_te_counts_the_layers_of_megatron_from_1(make_layer: Any, te_config: Any) -> None:
    name = "decoder.layers.0.mlp.local_experts.0.linear_fc1"
    raw = f"module.{name.replace('.mlp', '._checkpoint_wrapped_module.mlp')}"
    layer = make_layer(name, class_name="TEColumnParallelLinear", raw_name=raw)
    features = te_config(export(Plan("current", (PlanEntry(name, "bf16"),)), "te", [layer]).text)
    assert features("model.decoder.layers.1.mlp.local_experts.0.linear_fc1") == OUT
    assert features("model.module.decoder.layers.1._checkpoint_wrapped_module.mlp.local_experts.0.linear_fc1") == OUT
    assert features(f"model.{name}") == features("model.decoder.layers.11.mlp.local_experts.0.linear_fc1") == {}


# Megatron ----------------------------------------------------------------------------------------------------------

_RECIPE_KEYS = {"fp8_quantization_recipe", "fp4_quantization_recipe", "custom_recipe_factory", "fp8_format",
                "override_quantized_autocast", "override_nonquantized_autocast", "tp_only_amax_red"}  # fmt: skip


def megatron(text: str, path: str) -> dict[str, str] | None:
    """The training recipe of a module, by the rules of Megatron-LM's `quant_config.py` and `TEQuantizationRecipe`."""
    document = yaml.safe_load(text)
    assert document.keys() <= {"configs", "matchers"}
    for matcher in (document.get("matchers") or {}).values():
        if matcher.get("enabled", False) and fnmatch.fnmatch(path, matcher["pattern"]):
            assert matcher["type"] == "glob"
            config = document["configs"][matcher["config"]]
            assert config.keys() == {"transformer_engine_config_type", "training_recipe"}
            assert config["transformer_engine_config_type"] == "TEQuantizationParams"
            recipe: dict[str, str] = config["training_recipe"]
            assert recipe.keys() <= _RECIPE_KEYS and recipe.get("fp8_quantization_recipe") != "delayed"
            return recipe
    return None


def test_megatron_takes_exactly_the_planned_modules(plan: Plan, layers: Layers) -> None:
    text = export(plan, "megatron", layers).text
    for layer in layers:
        assert megatron(text, layer.name) == ({} if layer.name in planned(plan) else None)
    assert "[0]" not in text.replace("[[]0]", "").replace("experts[0] loses", "").replace("# experts[0]", "")


def test_megatron_knows_modules_and_recipes_alone(make_layer: Any) -> None:
    plan = Plan(
        "delayed",
        (
            PlanEntry("a", "mxfp8", reason="r"),
            PlanEntry("b", "current", reason="r"),
            PlanEntry("c", "delayed:margin=2", reason="r"),
            PlanEntry("d", "bf16", gemm="wgrad", reason="r"),
            PlanEntry("decoder.experts.gemm_0", "bf16", reason="r"),
        ),
    )
    experts = [make_layer(f"decoder.experts.gemm_{i}", "GroupedLinear", "TEGroupedLinear") for i in range(2)]
    done = export(plan, "megatron", experts)
    assert megatron(done.text, "a") == {"fp8_quantization_recipe": "mxfp8", "fp8_format": "e4m3"}
    assert megatron(done.text, "b") == {"fp8_quantization_recipe": "tensorwise", "fp8_format": "hybrid"}
    assert megatron(done.text, "c") == megatron(done.text, "d") == megatron(done.text, "decoder.experts") == {}
    assert [note.layer for note in done.notes] == ["c", "d", "decoder.experts.gemm_0"]
    assert "delayed scaling is refused in the recipe of a module" in done.notes[0].text
    assert "which is less than a module" in done.notes[1].text
    assert "also: decoder.experts.gemm_1" in done.notes[2].text


def test_megatron_numbers_layers_in_their_own_stage(make_layer: Any) -> None:
    stages = [make_layer(f"decoder.layers.{i}.fc", raw_name=f"module.decoder.layers.{i % 2}.fc") for i in range(4)]
    done = export(Plan("current", (PlanEntry("decoder.layers.3.fc", "bf16"),)), "megatron", stages)
    assert megatron(done.text, "decoder.layers.1.fc") == {} and megatron(done.text, "decoder.layers.3.fc") is None
    assert done.notes == (Note("decoder.layers.3.fc", "The same path, so also: decoder.layers.1.fc"),)
    assert done.plan.layers_in_bf16 == ("decoder.layers.3.fc", "decoder.layers.1.fc")


@pytest.mark.parametrize(
    ("recipe", "out", "words"),
    [
        ("current", (0, 2, 3), "# The same without this file: --first-last-layers-bf16 "
         "--num-layers-at-start-in-bf16 1 --num-layers-at-end-in-bf16 2"),
        ("delayed", (3,), "# Not possible here: --first-last-layers-bf16 --num-layers-at-start-in-bf16 0 "
         "--num-layers-at-end-in-bf16 1. Megatron refuses first and last layers in BF16 under delayed scaling."),
        ("current", (0, 2), None),
        ("current", (1,), None),
    ],
)  # fmt: skip
def test_megatron_flags(recipe: str, out: tuple[int, ...], words: str | None, make_layer: Any) -> None:
    layers = [make_layer(f"decoder.layers.{i}.{part}") for i in range(4) for part in ("fc1", "fc2")]
    entries = [PlanEntry(layer.name, "bf16") for layer in layers if int(layer.name.split(".")[2]) in out]
    text = export(Plan(recipe, tuple(entries)), "megatron", layers).text
    assert words in text.splitlines() if words else "first-last" not in text
    assert "first-last" not in export(Plan(recipe, tuple(entries[1:])), "megatron", layers).text


# torchtitan, torchao, accelerate -----------------------------------------------------------------------------------


def test_torchtitan_leaves_out_the_planned_layers_and_says_which_others(plan: Plan, layers: Layers) -> None:
    done = export(plan, "torchtitan", layers)
    filter_fqns = tomllib.loads(done.text)["quantize"]["linear"]["float8"]["filter_fqns"]
    # torchtitan/components/quantization/utils.py: `any(filter_fqn in fqn for filter_fqn in filter_fqns)`
    left_out = {layer.name for layer in layers if any(part in layer.name for part in filter_fqns)}
    assert left_out == planned(plan) | {"blocks.10"}
    assert done.notes == (Note("blocks.1", "A part of other names, so these leave FP8 too: blocks.10"),)
    assert set(done.plan.layers_in_bf16) == left_out
    assert "A part of other names, so also: blocks.10" in done.text
    assert "--quantize.linear.float8.filter_fqns" not in done.text  # a list with commas between cannot hold these
    whole = export(Plan("current", (PlanEntry("layers.1.w2", "bf16"), PlanEntry("output", "bf16"))), "torchtitan", [])
    assert '# --quantize.linear.float8.filter_fqns="layers.1.w2,output"' in whole.text.splitlines()


def test_exactly_the_planned_layers_stay_linear(
    plan: Plan, layers: Layers, hostile: tuple[str, ...], tmp_path: Path, repository: Path, warm_trainers: Any
) -> None:
    names = {target: f"plan_for_{target}" for target in ("torchao", "accelerate")}
    for target, name in names.items():
        done = export(plan, target, layers)
        assert done.notes == ()
        (tmp_path / f"{name}.py").write_text(done.text, encoding="utf-8")
    script = str(repository / "tests" / "data" / "plans" / "convert.py")
    ran = warm_trainers.run(tmp_path, script, json.dumps(list(names.values())), json.dumps(hostile))
    assert ran.returncode == 0, ran.stderr[-2000:]
    for plain, wrapped in json.loads(ran.stdout):
        assert set(plain) == planned(plan) | {"odd"}  # whose sizes FP8 cannot have
        assert set(wrapped) == {f"_orig_mod.{name}" for name in plain}


def test_torchao_has_whole_linear_layers_alone(make_layer: Any) -> None:
    entries = (PlanEntry("a", "bf16", gemm="wgrad", reason="r"), PlanEntry("experts", "bf16", reason="r"))
    plan = Plan("delayed", entries)
    for target in ("torchao", "accelerate", "torchtitan"):
        done = export(plan, target, [make_layer("a"), make_layer("experts", kind="parameter")])
        first, second, third = done.notes
        assert first.layer == "" and "delayed scaling, which torchao does not have" in first.text
        assert second.layer == "a" and "the plan has wgrad in bf16, and a layer is converted or not" in second.text
        assert third == Note("experts", "Not in the file: it is no nn.Linear (parameter) and never converted")
        assert done.plan.layers_in_bf16 == ("a",)
        assert "'experts'" not in done.text and '"experts"' not in done.text


# All of them -------------------------------------------------------------------------------------------------------


def test_an_empty_plan_is_a_file_that_changes_nothing(layers: Layers, te_config: Any, tmp_path: Path) -> None:
    empty = {target: export(Plan("current"), target, layers).text for target in ("te", "megatron", "torchtitan")}
    assert all("There is nothing to change: this file changes nothing." in text for text in empty.values())
    features = te_config(empty["te"])
    assert all(features(f"model.{layer.name}") == {} for layer in layers)
    assert megatron(empty["megatron"], "blocks.1") is None
    assert tomllib.loads(empty["torchtitan"])["quantize"]["linear"]["float8"]["filter_fqns"] == []
    namespace: dict[str, Any] = {}
    exec(export(Plan("current"), "torchao", layers).text, namespace)
    assert namespace["HIGH_PRECISION"] == ()


def test_own_format_holds_every_name_and_reason(plan: Plan, layers: Layers, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(export(plan, "fp8debug", layers).text, encoding="utf-8", newline="")
    assert read_plan(path) == plan


def test_of_several_models_the_prefix_is_ours(make_layer: Any, te_config: Any) -> None:
    layer = LayerInfo("GPT#1.fc", "fc", "Linear", "GPT#1", 64, 64, True)
    plan = Plan("current", (PlanEntry("GPT#1.fc", "bf16"),))
    assert te_config(export(plan, "te", [layer]).text)("model.fc") == OUT
    assert megatron(export(plan, "megatron", [layer]).text, "fc") == {}
    assert '"fc",' in export(plan, "torchtitan", [layer]).text


def test_whole_layers_widen_the_plan_itself() -> None:
    plan = Plan(
        "delayed", (PlanEntry("a", "bf16", gemm="wgrad", reason="r"), PlanEntry("b", "bf16", reason="s")), "run"
    )
    assert whole_layers(plan) == Plan(
        "delayed",
        (PlanEntry("a", "bf16", reason="r (Cheaper: wgrad in bf16.)"), PlanEntry("b", "bf16", reason="s")),
        "run",
    )


def test_flops_kept() -> None:
    flops = {"a": {"fprop": 4.0, "dgrad": 4.0, "wgrad": 4.0}, "b": {"fprop": 8.0}}
    gemm, operand = PlanEntry("a", "bf16", gemm="wgrad"), PlanEntry("a", "bf16", tensor="dy")
    assert flops_kept(Plan("delayed", (gemm,)), flops) == 0.8
    assert flops_kept(Plan("delayed", (operand,)), flops) == 0.6  # both GEMMs that read it
    assert flops_kept(Plan("delayed", (PlanEntry("a", "current", tensor="x"),)), flops) == 1.0
    assert flops_kept(Plan("delayed", (PlanEntry("b", "bf16"),)), flops) == 0.6
    assert flops_kept(Plan("delayed", (PlanEntry("c", "bf16"),)), flops) is None
