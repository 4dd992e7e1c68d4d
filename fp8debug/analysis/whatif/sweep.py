"""One parameter of recipes over several values: `margin=0:4`, `fp8_format=E4M3,E5M2`."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.errors import UsageError, nearest
from fp8debug.recipes import Recipe, parse_recipe
from fp8debug.recipes.base import parameters

MOST_RECIPES = 64

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER})(?::({_NUMBER}))?")
_EXPECTED = "expected NAME=FIRST:LAST, NAME=FIRST:LAST:STEP or NAME=VALUE,VALUE,..., for example margin=0:4"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A parameter and the values it goes over, as texts."""

    name: str
    values: tuple[str, ...]


def parse_sweep(text: str) -> Sweep:
    """Read NAME=FIRST:LAST[:STEP], both ends included, or NAME=VALUE,VALUE,....

    Raises:
        UsageError: it is neither, is empty, or has too many values.
    """
    name, equals, rest = (part.strip() for part in text.partition("="))
    if not equals or not name or not rest:
        raise UsageError(f"--sweep {text!r}: {_EXPECTED}")
    found = _RANGE.fullmatch(rest)
    if found is not None:
        return Sweep(name, _range(text, *found.groups()))
    values = tuple(value.strip() for value in rest.split(","))
    if ":" in rest or re.fullmatch(r"\d+-\d+", rest) or not all(values):
        raise UsageError(f"--sweep {text!r}: {_EXPECTED}")
    return Sweep(name, values)


def _range(text: str, first: str, last: str, step: str | None) -> tuple[str, ...]:
    start, stop, width = float(first), float(last), float(step or 1)
    if width <= 0 or stop < start:
        raise UsageError(f"--sweep {text!r}: the range is empty; FIRST must not be above LAST, STEP be positive")
    count = math.floor((stop - start) / width + 1e-9) + 1
    if count > MOST_RECIPES:
        raise UsageError(f"--sweep {text!r}: {count} values; at most {MOST_RECIPES} are compared at once")
    if all(re.fullmatch(r"[-+]?\d+", word) for word in (first, last, step or "1")):
        return tuple(str(int(first) + i * int(step or 1)) for i in range(count))
    return tuple(f"{start + i * width:.12g}" for i in range(count))


def swept(recipes: Sequence[Recipe], sweeps: Sequence[Sweep]) -> tuple[Recipe, ...]:
    """Replace each recipe that has a swept parameter by one for each value; the others stay as they are.

    So does one that none of the values suits, such as nvfp4 in a sweep over FP8 formats, where they suit another.

    Raises:
        UsageError: no recipe has the parameter (the nearest names are said), a bad value, or too many recipes.
    """
    for sweep in sweeps:
        if not any(sweep.name in parameters(type(recipe)) for recipe in recipes):
            raise _unknown(sweep.name, recipes)
        suited = [recipe for recipe in recipes if _suits(sweep, recipe)]
        expanded = [_expanded(r, sweep) if r in suited or not suited else [r] for r in recipes]
        recipes = list(itertools.chain.from_iterable(expanded))
    distinct = tuple({recipe.text: recipe for recipe in recipes}.values())
    if len(distinct) > MOST_RECIPES:
        raise UsageError(f"{len(distinct)} recipes; at most {MOST_RECIPES} are compared at once: narrow --sweep")
    return distinct


def _suits(sweep: Sweep, recipe: Recipe) -> bool:
    """Whether the recipe can have any of the values."""
    for value in sweep.values:
        with contextlib.suppress(UsageError):
            _expanded(recipe, Sweep(sweep.name, (value,)))
            return sweep.name in parameters(type(recipe))
    return False


def _expanded(recipe: Recipe, sweep: Sweep) -> list[Recipe]:
    if sweep.name not in parameters(type(recipe)):
        return [recipe]
    kept = [item for item in recipe.text.partition(":")[2].split(",") if item.partition("=")[0] != sweep.name]
    return [
        parse_recipe(f"{recipe.kind}:{','.join(filter(None, [*kept, f'{sweep.name}={value}']))}")
        for value in sweep.values
    ]


def _unknown(name: str, recipes: Sequence[Recipe]) -> UsageError:
    known = sorted({parameter for recipe in recipes for parameter in parameters(type(recipe))})
    close = nearest(name, known)
    hint = f"did you mean {' or '.join(close)}?" if close else f"they have: {', '.join(known)}"
    kinds = ", ".join(sorted({recipe.kind for recipe in recipes}))
    return UsageError(f"--sweep {name}: none of the recipes ({kinds}) has this parameter; {hint}")
