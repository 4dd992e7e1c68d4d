"""What every recipe has: a name, parameters that are checked, element formats, and a text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from fp8debug.errors import UsageError, nearest
from fp8debug.formats import E4M3, E5M2, ELEMENT_FORMATS, Format

FORWARD_TENSORS = ("x", "w", "y", "key", "value")
BACKWARD_TENSORS = ("dy", "dx", "dw")
STATE_TENSORS = ("m", "v")
FP8_FORMATS = ("HYBRID", *ELEMENT_FORMATS)
FLT_MAX = float(np.finfo(np.float32).max)

_FLT_MAX_ROUNDING = math.ldexp(2.0 - 2.0**-24, 127)  # from here on float64 rounds to an infinite float32
_INFINITY = np.float32(math.inf)


def scale_inv(scale: np.float32) -> np.float32:
    """float32(1) / scale, rounded once: the factor that undoes the scale. Infinite for scales below 2^-128."""
    if not scale:
        return _INFINITY
    inverse = 1.0 / float(scale)  # rounds to float32 as if divided there: 53 >= 2 * 24 + 2 bits
    return np.float32(inverse) if not inverse >= _FLT_MAX_ROUNDING else _INFINITY


def quotient(maximum: float, amax: float) -> np.float32:
    """float32(maximum) / float32(amax), rounded once and at most the largest float32; `amax` is positive."""
    # A float64 quotient of two float32 numbers rounds to float32 as if divided there: 53 >= 2 * 24 + 2 bits.
    return np.float32(min(maximum / amax, FLT_MAX))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every recipe has: a name, its element formats, and a text."""

    kind: ClassVar[str]
    """Name on the command line."""
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = MappingProxyType({})
    """Parameters by the name of who uses them: `kind:name` on the command line."""
    choices: ClassVar[tuple[str, ...]] = FP8_FORMATS
    """What `fp8_format` may be."""
    fp8_format: str = "HYBRID"
    """HYBRID (dy, dx, dw in E5M2, all others in E4M3) or the name of one format for all."""

    def __post_init__(self) -> None:
        require_choice(self, "fp8_format", self.choices)

    @cached_property  # asked for at every observed pass
    def text(self) -> str:
        """Canonical text: the name and the parameters that differ from their defaults, in order of definition."""
        changed = [
            f"{name}={_format_value(getattr(self, parameter.attribute))}"
            for name, parameter in parameters(type(self)).items()
            if getattr(self, parameter.attribute) != parameter.default
        ]
        return f"{self.kind}:{','.join(changed)}" if changed else self.kind

    def formats_for(self, tensor: str) -> tuple[tuple[Format, bool], ...]:
        """Formats that `tensor` is measured in, each with whether it is an alternate.

        States of an optimizer are like w, key and value like x. Under HYBRID the field disagrees about gradients, so
        theirs are measured in E4M3 beside E5M2.
        """
        known = FORWARD_TENSORS + BACKWARD_TENSORS + STATE_TENSORS
        if tensor not in known:
            raise unknown("tensor", tensor, known)
        if self.fp8_format != "HYBRID":
            return ((ELEMENT_FORMATS[self.fp8_format], False),)
        if tensor not in BACKWARD_TENSORS:
            return ((E4M3, False),)
        return ((E5M2, False), (E4M3, True))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a recipe."""

    attribute: str
    """Name in Python; the one in texts may differ."""
    default: Any


def parameters(recipe: type[Recipe]) -> dict[str, Parameter]:
    """Parameters by their name in texts: the recipe's own first, those of every recipe last."""
    own = [f for f in fields(recipe) if f.name != "fp8_format"]
    shared = [f for f in fields(recipe) if f.name == "fp8_format"]
    return {f.metadata.get("parameter", f.name): Parameter(f.name, f.default) for f in own + shared}


def require_choice(recipe: Recipe, name: str, choices: Sequence[str]) -> None:
    """Raise a UsageError unless the parameter is one of `choices`."""
    value = getattr(recipe, name)
    if value not in choices:
        raise bad_value(recipe.kind, name, value, f"one of {', '.join(choices)}")


def require_flags(recipe: Recipe, *names: str) -> None:
    """Raise a UsageError unless the parameters are booleans."""
    for name in names:
        value = getattr(recipe, name)
        if not isinstance(value, bool):
            raise bad_value(recipe.kind, name, value, "true or false")


def is_integer(value: object) -> bool:
    """Whether it is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is an int or a float and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def bad_value(kind: str, name: str, got: object, expected: str) -> UsageError:
    """The error for a value that a parameter cannot have."""
    return UsageError(f"recipe {kind}: {name} is {got!r}, expected {expected}")


def unknown(what: str, word: str, known: Iterable[str]) -> UsageError:
    """The error for a word that is none of `known`, with the nearest ones."""
    known = list(known)
    close = nearest(word, known)
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    return UsageError(f"unknown {what} {word!r}; {hint}expected one of {', '.join(known)}")


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
