"""Scaling recipes: how a tensor's scale follows from its largest magnitudes.

Names and parameters are Transformer Engine's, and so is the arithmetic, bit for bit: `CurrentScaling` is
`compute_scale_from_amax` of its recipe_common.cuh, `DelayedScaling` the fused update of delayed_scaling.cu.
A recipe's canonical text, such as `delayed:amax_history_len=16`, names it in every table.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar

import numpy as np

from fp8debug.errors import UsageError, nearest
from fp8debug.formats import E4M3, E5M2, FORMATS, Format

FORWARD_TENSORS = ("x", "w", "y")
BACKWARD_TENSORS = ("dy", "dx", "dw")
FP8_FORMATS = ("HYBRID", *FORMATS)
MARGIN_LIMIT = 32  # 2^32 covers the whole range of E5M2: more is a slip of the pen

_FLT_MAX = float(np.finfo(np.float32).max)
_FLT_MAX_ROUNDING = math.ldexp(2.0 - 2.0**-24, 127)  # from here on float64 rounds to an infinite float32
_ONE = np.float32(1.0)
_INFINITY = np.float32(math.inf)


def scale_inv(scale: np.float32) -> np.float32:
    """float32(1) / scale, rounded once: the factor that undoes the scale. Infinite for scales below 2^-128."""
    if not scale:
        return _INFINITY
    inverse = 1.0 / float(scale)  # rounds to float32 as if divided there: 53 >= 2 * 24 + 2 bits
    return np.float32(inverse) if inverse < _FLT_MAX_ROUNDING else _INFINITY


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What every recipe has: a name, its element formats, and a text."""

    kind: ClassVar[str]
    """Name on the command line."""
    fp8_format: str = "HYBRID"
    """HYBRID (x, w, y in E4M3; dy, dx, dw in E5M2) or the name of one format for all."""

    def __post_init__(self) -> None:
        _require_choice(self, "fp8_format", FP8_FORMATS)

    @cached_property  # asked for at every observed pass
    def text(self) -> str:
        """Canonical text: the name and the parameters that differ from their defaults, in order of definition."""
        changed = [
            f"{name}={_format_value(getattr(self, name))}"
            for name, default in _parameters(type(self)).items()
            if getattr(self, name) != default
        ]
        return f"{self.kind}:{','.join(changed)}" if changed else self.kind

    def formats_for(self, tensor: str) -> tuple[tuple[Format, bool], ...]:
        """Formats that `tensor` (x, w, y, dy, dx or dw) is measured in, each with whether it is an alternate.

        Under HYBRID the field disagrees about gradients, so theirs are measured in E4M3 beside E5M2.
        """
        if tensor not in FORWARD_TENSORS + BACKWARD_TENSORS:
            raise _unknown("tensor", tensor, FORWARD_TENSORS + BACKWARD_TENSORS)
        if self.fp8_format != "HYBRID":
            return ((FORMATS[self.fp8_format], False),)
        if tensor in FORWARD_TENSORS:
            return ((E4M3, False),)
        return ((E5M2, False), (E4M3, True))


@dataclass(frozen=True, kw_only=True)
class CurrentScaling(Recipe):
    """The scale of each tensor follows from its own amax."""

    kind: ClassVar[str] = "current"
    power_of_two: bool = False
    """Round the scale down to a power of two."""
    amax_epsilon: float = 0.0
    """Smaller amaxes are replaced by this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        epsilon = self.amax_epsilon
        if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon <= _FLT_MAX:
            raise _bad_value(self.kind, "amax_epsilon", epsilon, "a finite number, 0 or more")
        if not isinstance(self.power_of_two, bool):
            raise _bad_value(self.kind, "power_of_two", self.power_of_two, "true or false")

    def scale(self, amax: float, fmt: Format) -> np.float32:
        """Scale for a tensor whose largest magnitude is `amax` (a float32 value).

        1 when amax is 0, infinite or NaN; the largest float32 when the quotient overflows.
        """
        epsilon = float(np.float32(self.amax_epsilon))
        if amax < epsilon:
            amax = epsilon
        if not 0 < amax < math.inf:
            return _ONE
        scale = _quotient(fmt.max, amax)
        if self.power_of_two:
            scale = np.float32(math.ldexp(1.0, math.frexp(scale)[1] - 1))
        return scale


@dataclass(frozen=True, kw_only=True)
class DelayedScaling(Recipe):
    """The scale follows from the amaxes of earlier passes."""

    kind: ClassVar[str] = "delayed"
    amax_history_len: int = 1024
    """Passes that the window holds."""
    amax_compute_algo: str = "max"
    """max: largest of the window | most_recent: the last."""
    margin: int = 0
    """Powers of two that the scale is kept below the largest that fits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_choice(self, "amax_compute_algo", ("max", "most_recent"))
        if not _is_integer(self.amax_history_len) or self.amax_history_len < 1:
            raise _bad_value(self.kind, "amax_history_len", self.amax_history_len, "an integer, 1 or more")
        if not _is_integer(self.margin) or abs(self.margin) > MARGIN_LIMIT:
            expected = f"an integer from -{MARGIN_LIMIT} to {MARGIN_LIMIT}"
            raise _bad_value(self.kind, "margin", self.margin, expected)

    def new_state(self, formats: Sequence[Format]) -> DelayedState:
        """A fresh history, shared by the scales of `formats`."""
        return DelayedState(self, formats)


class DelayedState:
    """Amax history and scales of one (layer, tensor, recipe).

    `observe` each pass, `roll` when the framework would update. Both take constant time, whatever the window:
    only amaxes that can still become the maximum are kept.
    """

    __slots__ = ("_candidates", "_maxima", "_most_recent", "_scales", "_slot", "amax_used", "history_len", "n_rolls",
                 "set_at_step")  # fmt: skip

    def __init__(self, recipe: DelayedScaling, formats: Sequence[Format]) -> None:
        self.history_len = recipe.amax_history_len
        """Length of the window."""
        self.n_rolls = 0
        """Rolls that consumed a non-zero amax."""
        self.amax_used: float | None = None
        """Amax that determined the scales; None while they are the initial 1."""
        self.set_at_step: int | None = None
        """Step whose roll set the scales; None while they are the initial 1."""
        self._most_recent = recipe.amax_compute_algo == "most_recent"
        self._maxima = {fmt.name: math.ldexp(fmt.max, -recipe.margin) for fmt in formats}
        self._scales = dict.fromkeys(self._maxima, _ONE)
        self._slot = 0.0
        self._candidates: deque[tuple[int, float]] = deque()  # (roll, amax): rolls ascend, amaxes descend

    @property
    def history_zeros(self) -> int:
        """Slots of the window that no amax has filled yet: a zero amax is never rolled in."""
        return max(0, self.history_len - self.n_rolls)

    def scale(self, fmt: Format) -> np.float32:
        """Scale in force for `fmt`, 1 until the first roll sets it."""
        return self._scales[fmt.name]

    def observe(self, amax: float) -> None:
        """Take the largest magnitude of one pass (a float32 value, 0 or more, infinity where x has one).

        The kernels keep the maximum of the bit patterns, so a NaN, once given, stays until the roll. They drop
        NaN *elements* before: give NaN only where the framework's own amax is NaN.
        """
        if amax > self._slot or amax != amax:
            self._slot = amax

    def roll(self, step: int) -> None:
        """Consume what was observed since the last roll and set the scales, as the fused kernel does.

        An amax of 0 changes nothing. NaN takes a slot and is ignored by `max`. While the deciding amax is infinite
        or NaN the scales stay, which after one infinity lasts as long as the window.
        """
        last, self._slot = self._slot, 0.0
        if last == 0:
            return
        self.n_rolls += 1
        amax = last if self._most_recent else self._window_maximum(last)
        if not 0 < amax < math.inf:
            return
        self.set_at_step = step
        if amax != self.amax_used:
            self.amax_used = amax
            self._scales = {name: _quotient(maximum, amax) for name, maximum in self._maxima.items()}

    def _window_maximum(self, last: float) -> float:
        candidates, roll = self._candidates, self.n_rolls
        while candidates and candidates[-1][1] <= last:
            candidates.pop()
        if last == last:
            candidates.append((roll, last))
        while candidates and candidates[0][0] <= roll - self.history_len:
            candidates.popleft()
        return candidates[0][1] if candidates else 0.0


RECIPES: dict[str, type[Recipe]] = {recipe.kind: recipe for recipe in (DelayedScaling, CurrentScaling)}


def parse_recipe(text: str) -> Recipe:
    """Read a recipe such as `current` or `delayed:amax_history_len=16,margin=1`.

    Raises:
        UsageError: an unknown recipe or parameter (the message names the nearest ones), or a bad value.
    """
    kind, _, rest = text.strip().partition(":")
    kind = kind.strip().lower()
    if kind not in RECIPES:
        raise _unknown("recipe", kind, RECIPES)
    recipe = RECIPES[kind]
    known = _parameters(recipe)
    values: dict[str, object] = {}
    for item in filter(None, map(str.strip, rest.split(","))):
        name, equals, word = (part.strip() for part in item.partition("="))
        if not equals:
            raise UsageError(f"recipe {text!r}: got {item!r}, expected name=value; parameters: {', '.join(known)}")
        if name not in known:
            raise _unknown(f"parameter of recipe {kind}", name, known)
        if name in values:
            raise UsageError(f"recipe {text!r}: {name} is given twice; give it once")
        values[name] = _parse_value(kind, name, word, known[name])
    return recipe(**values)  # type: ignore[arg-type]  # each value has its parameter's type; __post_init__ checks


def _quotient(maximum: float, amax: float) -> np.float32:
    # A float64 quotient of two float32 numbers rounds to float32 as if divided there: 53 >= 2 * 24 + 2 bits.
    return np.float32(min(maximum / amax, _FLT_MAX))


def _parameters(recipe: type[Recipe]) -> dict[str, object]:
    """Parameter names with their defaults: the recipe's own first, those of every recipe last."""
    own = [f for f in fields(recipe) if f.name != "fp8_format"]
    shared = [f for f in fields(recipe) if f.name == "fp8_format"]
    return {f.name: f.default for f in own + shared}


def _parse_value(kind: str, name: str, word: str, default: object) -> object:
    if isinstance(default, bool):
        if word.lower() not in ("true", "false"):
            raise _bad_value(kind, name, word, "true or false")
        return word.lower() == "true"
    if isinstance(default, str):
        return word.upper() if name == "fp8_format" else word.lower()
    number: type[int] | type[float] = int if isinstance(default, int) else float
    try:
        return number(word)
    except ValueError:
        raise _bad_value(kind, name, word, "an integer" if number is int else "a number") from None


def _format_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _require_choice(recipe: Recipe, name: str, choices: Sequence[str]) -> None:
    value = getattr(recipe, name)
    if value not in choices:
        raise _bad_value(recipe.kind, name, value, f"one of {', '.join(choices)}")


def _bad_value(kind: str, name: str, got: object, expected: str) -> UsageError:
    return UsageError(f"recipe {kind}: {name} is {got!r}, expected {expected}")


def _unknown(what: str, word: str, known: Sequence[str] | dict[str, type[Recipe]] | dict[str, object]) -> UsageError:
    close = nearest(word, known)
    hint = f"did you mean {' or '.join(close)}?" if close else ""
    return UsageError(f"unknown {what} {word!r}; {hint + ' ' if hint else ''}expected one of {', '.join(known)}")
