"""Which tensors each dialect stores for each recipe: names, dtypes, shapes; forms.toml is the data."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from fp8debug.errors import UsageError, nearest
from fp8debug.formats import Format
from fp8debug.recipes import Recipe, Static

_WRITTEN_AS = {"static": "current"}
"""Recipes that are written like another one."""


@dataclass(frozen=True, slots=True)
class ScaleForm:
    """One scale tensor of a quantised weight; the words of forms.toml."""

    tail: str
    dtype: str
    shape: str
    divides: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """How one dialect stores what one recipe makes."""

    dialect: str
    recipe: str
    """Kind of the recipe: current, block, ..."""
    formats: tuple[str, ...]
    """Element formats that it can say."""
    scale: ScaleForm | None = None
    """None: codes are values."""
    tensor_scale: ScaleForm | None = None
    """Second level."""
    codes: str = "{param}"
    """Tail of the tensor of codes."""
    has_whole_blocks: bool = False
    has_blocks_apart: bool = False
    is_high_first: bool = False
    is_torch: bool = False
    has_stacks: bool = True


@cache
def forms() -> tuple[Form, ...]:
    """All that can be written; of a recipe the usual one first."""
    text = (resources.files("fp8debug.analysis.checkpoint.quantize") / "forms.toml").read_text("utf-8")
    return tuple(map(_form, tomllib.loads(text)["forms"]))


def form_for(recipe: Recipe, dialect: str | None) -> Form:
    """The form of a recipe in a dialect, or its usual one.

    Raises:
        UsageError: there is none; the message lists what there is.
    """
    kinds = (recipe.kind, _WRITTEN_AS.get(recipe.kind))
    fitting = [form for form in forms() if form.recipe in kinds]
    if not fitting:
        known = dict.fromkeys(form.recipe for form in forms())
        raise UsageError(f"recipe {recipe.text} makes no checkpoint; expected one of {', '.join(known)}")
    found = next((form for form in fitting if dialect in (None, form.dialect)), None)
    if found is None:
        assert dialect is not None
        raise UsageError(_no_pair(recipe, dialect, fitting))
    if found.scale is None and isinstance(recipe, Static) and recipe.value != 1:
        raise UsageError(f"recipe {recipe.text} as {dialect}: it stores no scale; expected static, whose scale is 1")
    return found


def element_format(recipe: Recipe, form: Form) -> Format:
    """Format of the codes of a weight.

    Raises:
        UsageError: the dialect cannot say it.
    """
    fmt = recipe.formats_for("w")[0][0]
    if fmt.name not in form.formats:
        others = dict.fromkeys(f.dialect for f in forms() if f.recipe == form.recipe and fmt.name in f.formats)
        elsewhere = f"; {fmt.name} is written as {', '.join(others)}" if others else ""
        raise UsageError(
            f"recipe {recipe.text} as {form.dialect}: its codes cannot be {fmt.name}; expected fp8_format one of "
            f"{', '.join(form.formats)}{elsewhere}"
        )
    return fmt


def _no_pair(recipe: Recipe, dialect: str, fitting: list[Form]) -> str:
    """Of a dialect that is not there, or does not hold the recipe."""
    known = dict.fromkeys(form.dialect for form in forms())
    holds = [form.recipe for form in forms() if form.dialect == dialect]
    where = ", ".join(form.dialect for form in fitting)
    if holds:
        return f"--as {dialect} holds no {recipe.kind}, only {', '.join(holds)}; {recipe.kind} is written as {where}"
    near = [name for name in nearest(dialect, known) if name]
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return f"--as {dialect}: no dialect of that name is written; {hint}expected one of {', '.join(known)}"


def _form(given: Mapping[str, Any]) -> Form:
    second = given.get("tensor_scale")
    return Form(
        **{
            **given,
            "formats": tuple(given["formats"]),
            "scale": ScaleForm(**given["scale"]) if "scale" in given else None,
            "tensor_scale": ScaleForm(**second) if second else None,
        }
    )
