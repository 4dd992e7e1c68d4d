"""A plan file of any target, told by what it holds."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fp8debug.analysis.plans.export import Names
from fp8debug.analysis.plans.paths import linear_fqn
from fp8debug.analysis.plans.rules import PlanFile, Rule, part_rule
from fp8debug.analysis.plans.torchao import LIST
from fp8debug.analysis.plans.yaml_plans import megatron_plan, read_yaml, te_plan
from fp8debug.errors import UsageError
from fp8debug.plans import read_plan
from fp8debug.reading import parse_toml, read_text

_EXPECTED = (
    "expected a file of `fp8debug plan`, a config of nvdlfw_inspect, a --te-precision-config-file of Megatron, or a "
    "TOML file with filter_fqns"
)


def read_file(path: Path, names: Names) -> PlanFile:
    """The rules of a plan file.

    Args:
        path: the file.
        names: how Transformer Engine's debug API names layers.

    Raises:
        UsageError: it cannot be read, or is no plan of a known kind.
    """
    try:
        text = read_text(path)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"cannot read the plan {path}: {why}; `fp8debug plan -o FILE` makes one") from error
    return _toml(path, text) or _python(path, text) or _yaml(path, text, names)


def _toml(path: Path, text: str) -> PlanFile | None:
    try:
        table = parse_toml(text)
    except ValueError:
        return None
    lists = list(_filters(table))
    if lists:
        rules = [part_rule(str(part), "not converted") for part in lists[0] if part != "auto_filter_small_kn"]
        return PlanFile("torchtitan", tuple(rules), linear_fqn)
    if "recipe" in table or "entry" in table:
        return _own(path)
    return None


def _own(path: Path) -> PlanFile:
    rules = []
    for entry in read_plan(path).entries:
        part = " of ".join(word for word in (entry.tensor, entry.gemm) if word)
        does = entry.change if not part else f"{part} in {entry.change}"
        rules.append(Rule(entry.layer, does, entry.layer.__eq__, literal=entry.layer))
    return PlanFile("fp8debug", tuple(rules), lambda layer: layer.name, lambda layer: layer.name)


def _filters(table: Any) -> Iterator[list[Any]]:
    """Every list called filter_fqns in a TOML file."""
    for key, value in table.items():
        if key == "filter_fqns" and isinstance(value, list):
            yield value
        elif isinstance(value, dict):
            yield from _filters(value)


def _python(path: Path, text: str) -> PlanFile | None:
    """A module of `--for torchao` or accelerate: its list is read, the module is not run."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested too deep
        return None
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == LIST for t in node.targets):
            try:
                listed = ast.literal_eval(node.value)
            except ValueError as error:
                raise UsageError(f"{path}: {LIST} is no tuple of names") from error
            rules = [Rule(str(n), "not converted", str(n).__eq__, literal=str(n)) for n in listed]
            return PlanFile("accelerate" if "AORecipeKwargs" in text else "torchao", tuple(rules), linear_fqn)
    if any(isinstance(node, (ast.FunctionDef, ast.Import, ast.ImportFrom)) for node in tree.body):
        raise UsageError(f"{path} has no {LIST}, and fp8debug runs no file to see what it matches; {_EXPECTED}")
    return None


def _yaml(path: Path, text: str, names: Names) -> PlanFile:
    document = read_yaml(path, text)
    if isinstance(document, dict) and ({"matchers", "configs"} & document.keys()):
        return megatron_plan(document)
    sections = list(document.values()) if isinstance(document, dict) else []
    if sections and all(isinstance(s, dict) and {"layers", "enabled"} & s.keys() for s in sections):
        return te_plan(document, names)
    raise UsageError(f"{path} is no plan that fp8debug knows; {_EXPECTED}")
