"""Emulated training of a model: `fp8debug.emulate(model, recipe)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from fp8debug.errors import UsageError, some
from fp8debug.hooks.backends.base import FoundLayer
from fp8debug.hooks.backends.finding import find_layers
from fp8debug.hooks.emulate.linear import EmulatedForward, emulated_forward
from fp8debug.hooks.emulate.operands import Emulator
from fp8debug.hooks.emulate.plan import EmulationPlan
from fp8debug.hooks.say import count_layers, nowhere, on_stderr
from fp8debug.hooks.selection import Selection, one_or_more
from fp8debug.hooks.stepping import OptimizerWatch
from fp8debug.plans import Plan, read_plan
from fp8debug.recipes import Recipe


class Emulation:
    """Layers that compute on quantised operands until `remove`. An error in here is an error of the training."""

    def __init__(self, plan: EmulationPlan, say: Callable[[str], None] = nowhere) -> None:
        self.layers: list[str] = []
        """Names of the emulated layers."""
        self.kept: list[str] = []
        """Names of the layers that `keep_bf16` or a fallback plan keeps in high precision."""
        self.left: dict[str, str] = {}
        """Names of the layers that cannot be emulated, with the reason."""
        self._plan = plan
        self._say = say
        self._emulator = Emulator(plan)
        self._forwards: dict[str, EmulatedForward] = {}
        self._watch = OptimizerWatch(self._emulator.keeper.clock, _raise)

    def add(self, layers: Sequence[FoundLayer]) -> dict[str, str]:
        """Emulate these layers, but those to be kept, and those that cannot be: they are returned, with the reason."""
        if not self._forwards:
            self._watch.start()
        left = {}
        for layer in layers:
            module = layer.module
            if self._plan.keeps(layer.name):
                self.kept.append(layer.name)
            elif (reason := why_not(module)) is not None:
                left[layer.name] = reason
            else:
                assert isinstance(module, nn.Linear)
                recipes = self._plan.of_layer(layer.name)
                self._forwards[layer.name] = forward = EmulatedForward(module, layer.name, self._emulator, recipes)
                module.forward = forward  # type: ignore[method-assign]
                self.layers.append(layer.name)
        self.left |= left
        return left

    def remove(self) -> None:
        """Let every layer compute as before; safe to call twice."""
        silent = [name for name, forward in self._forwards.items() if forward.active and forward.last_call is None]
        for forward in self._forwards.values():
            forward.uninstall()
        self._watch.stop()
        if silent:
            self._say(f"fp8debug: {count_layers(len(silent), 'emulated')} never ran: {some(silent)}")

    def advance(self) -> None:
        """Say that a step is over; from then on only this ends steps."""
        self._emulator.keeper.clock.advance()

    def summary(self) -> str:
        """`fp8debug: emulating delayed in 24 layers, 1 kept in high precision`, and what else should be known."""
        parts = [f"fp8debug: emulating {self._plan.text} in {count_layers(len(self.layers))}"]
        if self.kept:
            parts.append(f", {len(self.kept)} kept in high precision")
        for reason, names in _by_reason(self.left).items():
            parts.append(
                f"; {some(names)} {'is left as it is' if len(names) == 1 else 'are left as they are'}: {reason}"
            )
        names = [*self.layers, *self.kept, *self.left]
        if departing := [name for name in self.layers if name in self._plan.departures]:
            parts.append(f", {len(departing)} computing otherwise by the plan")
        unmatched = self._plan.unmatched(names)
        if unmatched:
            quoted = ", ".join(f"'{pattern}'" for pattern in unmatched)
            parts.append(f"; no layer to keep matches {quoted}")
        if missing := self._plan.unmatched_departures(names):
            parts.append(f"; the plan is about layers that are not here: {some(missing)}")
        return "".join(parts)

    def __enter__(self) -> Emulation:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def emulate(
    model: nn.Module,
    recipe: str | Recipe | None = None,
    *,
    plan: Plan | str | os.PathLike[str] | None = None,
    layers: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    keep_bf16: str | Iterable[str] = (),
    only: str | Iterable[str] = (),
    quiet: bool = False,
) -> Emulation:
    """Train as if in low precision: the three GEMMs of `model`'s layers read operands quantised under `recipe`.

    Use it as a context manager, or call `remove()`.

    Args:
        model: any module; wrapped or not. Its nn.Linear layers are meant; subclasses with a forward of their own are
            left as they are.
        recipe: such as "current", "delayed:amax_history_len=16" or "mxfp8"; default: the plan's.
        plan: a fallback plan or its file: layers, operands and GEMMs that compute with another recipe or in high
            precision.
        layers, exclude: regexes (re.search) on the qualified names; default: every nn.Linear.
        keep_bf16: regexes; layers that match any stay in high precision. Other than with `exclude` they are counted.
        only: of the operands "x", "w", "dy" and the GEMMs "fprop", "dgrad", "wgrad": quantise just these. Named
            operands and named GEMMs restrict each other.
        quiet: say nothing on standard error.

    Raises:
        UsageError: a regex that does not compile or leaves no layer, an unknown recipe, operand or GEMM, neither a
            recipe nor a plan, a file that is no plan.
    """
    fallback = plan if plan is None or isinstance(plan, Plan) else read_plan(Path(plan))
    asked = EmulationPlan.from_words(recipe, one_or_more(keep_bf16), only, plan=fallback)
    selection = Selection.from_regexes(one_or_more(layers), one_or_more(exclude))
    found = find_layers(model, backend="modules")
    taken = [layer for layer in found if selection.takes(layer.name)]
    if not taken:
        raise UsageError(selection.explain_no_match([layer.name for layer in found]))
    if (nothing := explain_nothing(asked, taken)) is not None:
        raise UsageError(nothing)
    say = nowhere if quiet else on_stderr
    emulation = Emulation(asked, say)
    emulation.add(taken)
    say(emulation.summary())
    return emulation


def explain_nothing(plan: EmulationPlan, layers: Sequence[FoundLayer]) -> str | None:
    """One line for the user when none of `layers` would be emulated; None when any would."""
    kept = [layer for layer in layers if plan.keeps(layer.name)]
    reasons = {layer.name: why_not(layer.module) for layer in layers if not plan.keeps(layer.name)}
    if None in reasons.values():
        return None
    left = {name: reason for name, reason in reasons.items() if reason is not None}
    why = "".join(f"; {some(names)}: {reason}" for reason, names in _by_reason(left).items())
    return f"nothing is left to emulate: {len(kept)} of {len(layers)} layers are kept in high precision{why}"


def emulated_text(module: nn.Module) -> str | None:
    """What the layer computes with, such as `current, only dy`; None where it is not emulated."""
    forward = emulated_forward(module)
    return None if forward is None else forward.recipes.text


def why_not(module: nn.Module) -> str | None:
    """Why a GEMM layer cannot be emulated; None when it can."""
    if emulated_forward(module) is not None:
        return "it is emulated already"
    if "forward" in vars(module):
        return "its forward has been replaced"
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "nn.MultiheadAttention reads its weight without calling it"
    if not isinstance(module, nn.Linear):
        return f"{type(module).__name__} is no nn.Linear"
    if type(module).forward is not nn.Linear.forward:
        return f"{type(module).__name__} has a forward of its own"
    return None


def _by_reason(left: Mapping[str, str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, reason in left.items():
        names.setdefault(reason, []).append(name)
    return names


def _raise(error: Exception) -> None:
    raise error
