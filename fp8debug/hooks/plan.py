"""Options checked and turned into the objects that a capture works with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from fp8debug.config import (
    ACCUMULATIONS,
    BACKENDS,
    DETAILS,
    ON_FULL,
    ROLLS,
    BadValue,
    CaptureOptions,
    parse_choice,
    parse_count,
    parse_size,
    parse_some,
    parse_tensors,
    parse_triggers,
)
from fp8debug.errors import UsageError
from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.schedule import Schedule
from fp8debug.hooks.selection import Selection, explain_pattern
from fp8debug.plans import read_plan
from fp8debug.recipes import Recipe, parse_recipe

Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What is captured, when, and under which recipes."""

    options: CaptureOptions
    selection: Selection
    schedule: Schedule
    recipes: tuple[Recipe, ...]
    emulation: EmulationPlan | None = None

    @classmethod
    def from_options(cls, options: CaptureOptions) -> CapturePlan:
        """Check every option.

        Raises:
            UsageError: a bad regex, recipe, tensor, period or range; the message says what is expected.
        """
        tensors = _checked("tensors", parse_tensors, options.tensors)
        _checked("rolls", parse_choice(*ROLLS), options.rolls)
        detail = _checked("detail", parse_some(*DETAILS, none="none"), options.detail)
        accumulation = _checked("accumulation", parse_some(*ACCUMULATIONS), options.accumulation)
        _checked("probe_memory", parse_count(0), options.probe_memory)
        _checked("backend", parse_choice(*BACKENDS), options.backend)
        trigger = _checked("trigger", parse_triggers, options.trigger) if options.trigger else ()
        _checked("flight_memory", parse_count(1), options.flight_memory)
        _checked("on_full", parse_choice(*ON_FULL), options.on_full)
        max_bytes = None if options.max_bytes is None else _checked("max_bytes", parse_size, options.max_bytes)
        emulation = _emulation(options)
        recipes = [parse_recipe(text) for text in options.recipes]
        if emulation is not None:  # what the training computes with is to be seen, asked for or not
            recipes.extend(emulation.recipes)
        return cls(
            replace(
                options,
                tensors=tensors,
                detail=detail,
                accumulation=accumulation,
                trigger=trigger,
                max_bytes=max_bytes,
            ),
            Selection.from_regexes(options.layers, options.exclude),
            Schedule.from_options(options),
            tuple({recipe.text: recipe for recipe in recipes}.values()),
            emulation,
        )

    def unmatched_exclusions(self, layers: Sequence[tuple[str, str]]) -> list[str]:
        """One text for each pattern of exclude and keep_bf16 that matches none of `layers`, (name, raw name) each."""
        names = [name for name, _ in layers]
        kept = [] if self.emulation is None else self.emulation.unmatched(names)
        options = [("--exclude", pattern) for pattern in self.selection.unmatched_exclude(names)]
        options += [("--keep-bf16", pattern) for pattern in kept]
        return [f"{option} '{p}' matches no layer ({explain_pattern(p, layers)})" for option, p in options]

    def unmatched_departures(self, layers: Sequence[str]) -> list[str]:
        """Layers of the fallback plan that are none of `layers`, which are those taken."""
        return [] if self.emulation is None else self.emulation.unmatched_departures(layers)


def _emulation(options: CaptureOptions) -> EmulationPlan | None:
    if options.emulate is not None or options.plan is not None:
        fallback = None if options.plan is None else read_plan(Path(options.plan))
        words = options.emulate, options.keep_bf16, options.emulate_only
        return EmulationPlan.from_words(*words, plan=fallback, rolls=options.rolls)
    for name in ("keep_bf16", "emulate_only"):
        if getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} says what to emulate, but --emulate is not given; expected a recipe for it, or --plan FILE"
            )
    return None


def _checked(name: str, parse: Callable[[object], Parsed], value: object) -> Parsed:
    try:
        return parse(value)
    except BadValue as error:
        raise UsageError(f"{name}: got {value!r}; expected {error}") from error
