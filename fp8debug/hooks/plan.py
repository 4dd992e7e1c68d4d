"""Options checked and turned into the objects that a capture works with."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.config import KNOWN_TENSORS, CaptureOptions
from fp8debug.errors import UsageError, nearest
from fp8debug.hooks.schedule import Schedule
from fp8debug.hooks.selection import Selection
from fp8debug.recipes import Recipe, parse_recipe


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What is captured, when, and under which recipes."""

    options: CaptureOptions
    selection: Selection
    schedule: Schedule
    recipes: tuple[Recipe, ...]

    @classmethod
    def from_options(cls, options: CaptureOptions) -> CapturePlan:
        """Check every option.

        Raises:
            UsageError: a bad regex, recipe, tensor, period or range; the message says what is expected.
        """
        for tensor in options.tensors:
            if tensor not in KNOWN_TENSORS:
                close = nearest(tensor, KNOWN_TENSORS) or KNOWN_TENSORS
                raise UsageError(
                    f"--tensors: unknown tensor {tensor!r}; expected some of {','.join(KNOWN_TENSORS)} "
                    f"(nearest: {', '.join(close)})"
                )
        if options.rolls not in ("microbatch", "step"):
            raise UsageError(f"--rolls {options.rolls!r}: expected microbatch or step")
        return cls(
            options,
            Selection.from_regexes(options.layers, options.exclude),
            Schedule.from_options(options),
            tuple({recipe.text: recipe for recipe in map(parse_recipe, options.recipes)}.values()),
        )
