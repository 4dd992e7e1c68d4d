"""What an exporter is given and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fp8debug.analysis.plans.departures import Departure
from fp8debug.plans import Plan, PlanEntry
from fp8debug.rundir import LayerInfo

Names = Literal["te", "model"]
"""How Transformer Engine's debug API names layers: as it infers them itself, or as the run does."""


@dataclass(frozen=True, slots=True)
class Request:
    """A plan to be written for a target."""

    plan: Plan
    departures: tuple[Departure, ...]
    layers: tuple[LayerInfo, ...]
    """All of the run: what else a pattern matches is looked up here."""
    names: Names = "te"

    def written(self, entries: Iterable[PlanEntry]) -> Plan:
        """The plan with other entries."""
        return replace(self.plan, entries=tuple(entries), flops_kept=None)

    def others(self, path_of: Callable[[LayerInfo], str | None], matches: Callable[[str], bool]) -> list[str]:
        """Layers that `matches` takes and that keep the plan's recipe; None as a path: no layer to the target."""
        planned = {departure.info.name for departure in self.departures}
        paths = ((layer.name, path_of(layer)) for layer in self.layers if layer.name not in planned)
        return [name for name, path in paths if path is not None and matches(path)]


@dataclass(frozen=True, slots=True)
class Note:
    """What a target makes of a part of the plan, in words."""

    layer: str
    """Its name in the run; empty where it is about the whole plan."""
    text: str


@dataclass(frozen=True, slots=True)
class Export:
    """A plan as its target reads it."""

    text: str
    """The file."""
    plan: Plan
    """What the target carries out: as asked, or wider."""
    notes: tuple[Note, ...] = ()
    """What the target cannot express, and what was done instead; those of layers are also comments in the file."""


Exporter = Callable[[Request], Export]


def head(request: Request, target: str, lines: Sequence[str]) -> list[str]:
    """The first lines of a file, to be made comments of."""
    made_from = f" from run {request.plan.run}" if request.plan.run else ""
    first = f"Made by `fp8debug plan --for {target}`{made_from}; the rest computes with {request.plan.recipe}."
    nothing = () if request.departures else ("There is nothing to change: this file changes nothing.",)
    return [first, *nothing, *lines]
