"""Plans in YAML read back: of Megatron and of Transformer Engine's debug API, with what each of them would refuse."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fp8debug.analysis.plans.export import Names
from fp8debug.analysis.plans.paths import fqn, megatron_path, te_name
from fp8debug.analysis.plans.rules import PlanFile, Rule, regex_rules, whole_numbers
from fp8debug.errors import UsageError
from fp8debug.rundir import LayerInfo

_PRECISION = ("DisableQuantizationLayer", "DisableQuantizationGEMM", "DisableFP8Layer", "DisableFP8GEMM")
_SELECTORS = ("layer_name_regex_pattern", "layer_types", "layer_numbers", "exact_layer_names")


def read_yaml(path: Path, text: str) -> Any:
    """What the YAML text holds.

    Raises:
        UsageError: it is no YAML, or PyYAML is missing.
    """
    try:
        import yaml
    except ImportError as error:
        raise UsageError(f"{path} looks like YAML, which needs PyYAML to be read (pip install pyyaml)") from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # the last two: a date that is none, nested too deep
        where = " ".join(str(error).split())
        raise UsageError(
            f"{path} is no plan that fp8debug knows: not TOML, not Python, and not YAML: {where}"
        ) from error


def megatron_plan(document: dict[str, Any]) -> PlanFile:
    """The matchers of a `--te-precision-config-file`, in order."""
    rules: list[Rule] = []
    problems: list[str] = []
    configs = _tables(document, "configs", problems)
    for name, matcher in _tables(document, "matchers", problems).items():
        pattern, config = str(matcher.get("pattern")), matcher.get("config")
        if "enabled" not in matcher:
            problems.append(f"matcher {name} is off: it has no `enabled: true`")
        if not matcher.get("enabled", False):
            continue
        if matcher.get("type") != "glob" or "pattern" not in matcher:
            problems.append(f"matcher {name} is refused: it needs `type: glob` and a pattern")
            continue
        if str(config) not in configs:
            problems.append(f"matcher {name} names the config {config!r}, which there is none of")
        recipe = configs.get(str(config), {}).get("training_recipe")
        if isinstance(recipe, dict) and recipe.get("fp8_quantization_recipe") == "delayed":
            problems.append(f"config {config} is refused: delayed scaling cannot be the recipe of a module")
        rules.append(_glob_rule(pattern, str(config), str(name)))
    return PlanFile("megatron", tuple(rules), megatron_path, _module_name, tuple(problems), first_wins=True)


def _tables(document: dict[str, Any], key: str, problems: list[str]) -> dict[str, dict[str, Any]]:
    """The named mappings below a key; what is something else is a problem."""
    found = document.get(key) or {}
    if not isinstance(found, dict):
        problems.append(f"{key} is refused: it is no mapping of names")
        return {}
    problems += [f"{key}: {name} is refused: it is no mapping" for name in found if not isinstance(found[name], dict)]
    return {str(name): table for name, table in found.items() if isinstance(table, dict)}


def _glob_rule(pattern: str, config: str, place: str) -> Rule:
    literal = re.sub(r"\[(.)\]", r"\1", pattern) if not re.search(r"[*?]|\[(?!.\])", pattern) else None
    strict = whole_numbers(fnmatch.translate(pattern))
    return Rule(
        pattern,
        f"config {config}",
        lambda path: fnmatch.fnmatch(path, pattern),
        strict and (lambda path: strict.match(path) is not None),
        literal if literal is None or fnmatch.fnmatch(literal, pattern) else None,
        place,
    )


def _module_name(layer: LayerInfo) -> str:
    """The module's path with the layer numbers of the whole model."""
    path = megatron_path(layer)
    segments = fqn(layer).split(".")
    return ".".join(segments[: len(path.split("."))])


def te_plan(document: dict[str, Any], names: Names) -> PlanFile:
    """The sections of a config of `nvdlfw_inspect`."""
    rules: list[Rule] = []
    problems = []
    for name, section in document.items():
        if "enabled" not in section or "layers" not in section:
            problems.append(f"section {name} is refused: it needs `enabled` and `layers`")
        elif not isinstance(section["layers"], dict):
            problems.append(f"section {name} is refused: its layers are no mapping of selectors")
        elif section["enabled"]:
            try:
                rules += _section_rules(str(name), section)
            except (re.error, TypeError, ValueError, OverflowError, RecursionError) as error:
                problems.append(f"section {name} is refused: {error}")
            if "exact_layer_names" in section["layers"]:
                problems.append(
                    f"section {name} stops the training at the first layer that its exact_layer_names lack: "
                    "use layer_name_regex_pattern"
                )
    if not any(section.get("enabled") for section in document.values()):
        problems.append("no section is enabled, which nvdlfw_inspect refuses")
    return PlanFile("te", tuple(rules), lambda layer: te_name(layer, names), problems=tuple(problems), one_section=True)


def _section_rules(name: str, section: dict[str, Any]) -> Iterator[Rule]:
    """The layers that a section takes: `exact_layer_names`, else the regex, else numbers and types together."""
    layers, does = section["layers"], _does(section)
    if not any(selector in layers for selector in _SELECTORS):
        raise ValueError(f"layers has none of {', '.join(_SELECTORS)}")
    keeps = does != "precision as it is"
    if "exact_layer_names" in layers:
        for exact in layers["exact_layer_names"]:
            yield Rule(str(exact), does, str(exact).__eq__, place=name, keeps=keeps)
    elif "layer_name_regex_pattern" in layers:
        for rule in regex_rules(str(layers["layer_name_regex_pattern"]), does, name):
            if rule.text != "(?!)":  # says of itself that it matches nothing
                yield Rule(rule.text, does, rule.matches, rule.exactly, place=name, keeps=keeps)
    else:
        yield _types_and_numbers(layers, does, name, keeps)


def _types_and_numbers(layers: dict[str, Any], does: str, place: str, keeps: bool) -> Rule:
    types, given = layers.get("layer_types"), layers.get("layer_numbers")
    if types is not None and not (isinstance(types, (str, list)) and all(isinstance(kind, str) for kind in types)):
        raise ValueError(f"layer_types is {types!r}, expected a list of texts")
    numbers = None if given in (None, "all") else list(_numbers([given] if isinstance(given, (int, str)) else given))

    def matches(name: str) -> bool:
        found = re.findall(r"(?<!fc)\d+", name)
        by_number = numbers is None or (len(found) == 1 and any(int(found[0]) in part for part in numbers))
        return by_number and (types is None or "all" in types or any(kind in name for kind in types))

    text = ", ".join(f"{key} {layers[key]}" for key in ("layer_types", "layer_numbers") if key in layers)
    return Rule(text, does, matches, place=place, keeps=keeps)


def _numbers(given: list[Any]) -> Iterator[range]:
    for item in given:
        first, _, last = str(item).partition("-")
        yield range(int(first), int(last or first) + 1)


def _does(section: dict[str, Any]) -> str:
    features = section.get("transformer_engine") or {}
    if not isinstance(features, dict) or not all(isinstance(options or {}, dict) for options in features.values()):
        raise ValueError("transformer_engine is no mapping of features to their options")
    words = []
    for feature, options in features.items():
        if feature in _PRECISION and (options or {}).get("enabled", True):
            gemms = (options or {}).get("gemms")
            words.append(f"{', '.join(gemms)} in bf16" if gemms else "bf16")
        elif feature == "PerTensorScaling":
            words.append("current scaling")
    return " and ".join(words) or "precision as it is"
