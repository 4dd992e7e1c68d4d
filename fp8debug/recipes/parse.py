"""Recipes from their texts."""

from __future__ import annotations

from collections.abc import Mapping

from fp8debug.errors import UsageError, nearest
from fp8debug.recipes.base import Parameter, Recipe, bad_value, parameters, unknown
from fp8debug.recipes.block import BlockScaling, RowWise
from fp8debug.recipes.delayed import DelayedScaling
from fp8debug.recipes.mx import MXFP4, MXFP6, MXFP8
from fp8debug.recipes.nvfp4 import NVFP4
from fp8debug.recipes.tensor import BF16, CurrentScaling, RangeExpansion, Static

RECIPES: dict[str, type[Recipe]] = {
    recipe.kind: recipe
    for recipe in (
        *(DelayedScaling, CurrentScaling, Static, BF16, RangeExpansion),
        *(RowWise, BlockScaling, MXFP8, MXFP6, MXFP4, NVFP4),
    )
}


def parse_recipe(text: str) -> Recipe:
    """Read a recipe such as `current`, `delayed:amax_history_len=16,margin=1` or `delayed:megatron,margin=1`.

    A bare word is a preset: the parameters that somebody's framework uses. What is written out beside it counts more.

    Raises:
        UsageError: an unknown recipe, preset or parameter (the message names the nearest ones), or a bad value.
    """
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip().lower()
    if kind not in RECIPES:
        raise unknown("recipe", kind, RECIPES)
    recipe = RECIPES[kind]
    known = parameters(recipe)
    preset: Mapping[str, object] | None = None
    values: dict[str, object] = {}
    for item in filter(None, map(str.strip, rest.split(","))):
        name, equals, word = (part.strip() for part in item.partition("="))
        if not equals:
            if preset is not None:
                raise UsageError(f"recipe {text!r}: {name!r} is a second preset; give one")
            preset = _preset(text, recipe, name)
            continue
        if name not in known:
            raise unknown(f"parameter of recipe {kind}", name, known)
        if known[name].attribute in values:
            raise UsageError(f"recipe {text!r}: {name} is given twice; give it once")
        values[known[name].attribute] = _parse_value(kind, name, word, known[name])
    return recipe(**{**(preset or {}), **values})  # type: ignore[arg-type]  # __post_init__ checks


def _preset(text: str, recipe: type[Recipe], word: str) -> Mapping[str, object]:
    if word.lower() in recipe.presets:
        return recipe.presets[word.lower()]
    known = [*recipe.presets, *parameters(recipe)]
    close = nearest(word, known)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    presets = f"; presets: {', '.join(recipe.presets)}" if recipe.presets else ""
    names = ", ".join(parameters(recipe))
    raise UsageError(f"recipe {text!r}: got {word!r}, expected name=value; parameters: {names}{presets}{hint}")


def _parse_value(kind: str, name: str, word: str, parameter: Parameter) -> object:
    default = parameter.default
    if isinstance(default, bool):
        if word.lower() not in ("true", "false"):
            raise bad_value(kind, name, word, "true or false")
        return word.lower() == "true"
    if isinstance(default, str):
        return word.upper() if name == "fp8_format" else word.lower()
    number: type[int] | type[float] = int if isinstance(default, int) else float
    try:
        return number(word)
    except ValueError:
        raise bad_value(kind, name, word, "an integer" if number is int else "a number") from None
