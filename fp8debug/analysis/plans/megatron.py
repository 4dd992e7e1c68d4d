"""A plan for Megatron-LM: the YAML file of `--te-precision-config-file`.

Format as `megatron/core/quantization/quant_config.py` (RecipeConfig) and `TEQuantizationRecipe` in
`megatron/core/extensions/transformer_engine.py` read it: named configs, and matchers of which the first that fits a
module's path (`fnmatch`) decides; one without `enabled: true` is passed over without a word.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fp8debug.analysis.plans.departures import Departure
from fp8debug.analysis.plans.export import Export, Note, Request, head
from fp8debug.analysis.plans.paths import megatron_path
from fp8debug.analysis.plans.text import comments, yaml_string
from fp8debug.errors import some
from fp8debug.plans import BF16, PlanEntry
from fp8debug.recipes import MXFP8, NVFP4, BlockScaling, CurrentScaling, DelayedScaling, Recipe, parse_recipe

_NAMES: dict[type[Recipe], str] = {CurrentScaling: "tensorwise", BlockScaling: "blockwise", MXFP8: "mxfp8"}
_FORMATS = {"HYBRID": "hybrid", "E4M3": "e4m3"}
_TYPE = 'transformer_engine_config_type: "TEQuantizationParams"'


@dataclass(frozen=True, slots=True)
class _Matcher:
    path: str
    config: str
    comment: str


def export(request: Request) -> Export:
    """One matcher a module, by its whole path; what is less than a layer, or delayed scaling, becomes BF16."""
    matchers: dict[str, _Matcher] = {}
    notes: list[Note] = []
    entries: list[PlanEntry] = []
    for departure in request.departures:
        path, config = megatron_path(departure.info), _config(departure)
        note = [] if config != BF16 or departure.whole == BF16 else [_widened(departure)]
        others = request.others(megatron_path, path.__eq__)
        note += [f"The same path, so also: {some(others)}"] if others else []
        notes += [Note(departure.info.name, words) for words in note]
        because = ". ".join([departure.reason.rstrip(".") or departure.asked, *note])
        if path in matchers and matchers[path].config != config:
            config = BF16
        before = f"{matchers[path].comment}; " if path in matchers else ""
        entries += [PlanEntry(name, config, reason=departure.reason) for name in (departure.info.name, *others)]
        matchers[path] = _Matcher(path, config, f"{before}{departure.info.name}: {because}")
    lines = comments(head(request, "megatron", ("For --te-precision-config-file; --fp8-format stays as it is.",)))
    lines += comments(_flags(request))
    text = "\n".join([*lines, *_configs(matchers), *_matchers(matchers)]) + "\n"
    return Export(text, request.written(entries), tuple(notes))


def _config(departure: Departure) -> str:
    """Key of the config that does it; bf16 where no other does."""
    change = departure.whole
    return change if change is not None and _recipe_lines(change) else BF16


def _widened(departure: Departure) -> str:
    if departure.whole is None:
        why = "which is less than a module"
    elif isinstance(parse_recipe(departure.whole), DelayedScaling):
        why = "and delayed scaling is refused in the recipe of a module"
    else:
        why = "for which the recipe of a module has no word"
    return f"Widened: the plan has {departure.asked}, {why}; the module is in BF16"


def _recipe_lines(change: str) -> list[str]:
    """The body of `training_recipe` for a change; empty when Megatron has no word for it."""
    if change == BF16:
        return []
    recipe = parse_recipe(change)
    if recipe == NVFP4():
        return ['fp4_quantization_recipe: "nvfp4"']
    name, element = _NAMES.get(type(recipe)), _FORMATS.get(recipe.fp8_format)
    if name is None or element is None or recipe != type(recipe)(fp8_format=recipe.fp8_format):
        return []
    return [f'fp8_quantization_recipe: "{name}"', f'fp8_format: "{element}"']


def _configs(matchers: dict[str, _Matcher]) -> Iterator[str]:
    yield from ("", "configs:", f"  {BF16}:", f"    {_TYPE}", "    training_recipe: {}")
    for change in dict.fromkeys(m.config for m in matchers.values() if m.config != BF16):
        yield from (f"  {yaml_string(change)}:", f"    {_TYPE}", "    training_recipe:")
        yield from (f"      {line}" for line in _recipe_lines(change))


def _matchers(matchers: dict[str, _Matcher]) -> Iterator[str]:
    yield from ("", "matchers:" if matchers else "matchers: {}")
    for number, matcher in enumerate(matchers.values()):
        yield from comments([matcher.comment], "  ")
        yield f"  fp8debug_{number}:"
        yield f"    config: {yaml_string(matcher.config)}"
        yield '    type: "glob"'
        yield f"    pattern: {yaml_string(glob.escape(matcher.path))}"
        yield "    enabled: true"


def _flags(request: Request) -> list[str]:
    """What to say of `--first-last-layers-bf16`: nothing, unless the plan is the first or last transformer layers."""
    ends = _ends(request.departures, [layer.name for layer in request.layers])
    if ends is None:
        return []
    flags = "--first-last-layers-bf16 --num-layers-at-start-in-bf16 {} --num-layers-at-end-in-bf16 {}".format(*ends)
    if isinstance(parse_recipe(request.plan.recipe), DelayedScaling):
        return [f"Not possible here: {flags}. Megatron refuses first and last layers in BF16 under delayed scaling."]
    return [f"The same without this file: {flags}"]


def _ends(found: Sequence[Departure], names: Sequence[str]) -> tuple[int, int] | None:
    """How many whole transformer layers the plan keeps out at the start and the end; None if it is anything else."""
    blocks: dict[tuple[str, int], set[str]] = {}
    for name in names:
        if match := re.match(r"((?:.*\.)?layers)\.(\d+)\.", name):
            blocks.setdefault((match[1], int(match[2])), set()).add(name)
    out = {d.info.name for d in found if d.whole == BF16}
    if not out or len(out) < len(found) or len({stem for stem, _ in blocks}) != 1:
        return None
    numbers = sorted(number for _, number in blocks)
    kept = {number: members for (_, number), members in blocks.items()}
    if numbers != list(range(len(numbers))) or out != set().union(*(kept[n] for n in numbers if kept[n] & out)):
        return None
    is_out = [bool(kept[number] & out) for number in numbers]
    start = is_out.index(False) if False in is_out else len(is_out)
    end = sum(is_out) - start
    return (start, end) if not any(is_out[start : len(is_out) - end]) else None
