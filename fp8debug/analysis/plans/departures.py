"""What each layer of a plan does otherwise than the rest, whatever its entries say it in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fp8debug.gemms import READS
from fp8debug.plans import BF16, Plan, PlanEntry
from fp8debug.recipes import parse_recipe
from fp8debug.rundir import LayerInfo


@dataclass(frozen=True, slots=True)
class Departure:
    """A layer that leaves the recipe of the rest, wholly or in part."""

    info: LayerInfo
    recipe: str
    """What the rest computes with."""
    changes: tuple[str, ...]
    """What each of `READS` is in: the plan's recipe, another one, or `bf16`."""
    asked: str
    """What the entries ask for, in words."""
    reason: str
    """Why, in one line."""

    @property
    def whole(self) -> str | None:
        """The one change of all GEMMs and tensors; None when they differ."""
        return self.changes[0] if len(set(self.changes)) == 1 else None

    def of_gemm(self, gemm: str) -> dict[str, str]:
        """Tensor → what `gemm` reads it in."""
        return {tensor: change for (g, tensor), change in zip(READS, self.changes, strict=True) if g == gemm}


def departures(plan: Plan, layers: Sequence[LayerInfo]) -> tuple[Departure, ...]:
    """The layers that depart, in the order of the plan; one that `layers` lacks is taken for an nn.Linear."""
    known = {layer.name: layer for layer in layers}
    recipe = canonical(plan.recipe)
    found = []
    for name in dict.fromkeys(entry.layer for entry in plan.entries):
        changes = tuple(canonical(plan.change_of(name, tensor, gemm)) for gemm, tensor in READS)
        if set(changes) == {recipe}:
            continue
        entries = [entry for entry in plan.entries if entry.layer == name]
        reasons = dict.fromkeys(" ".join(entry.reason.split()) for entry in entries)
        found.append(
            Departure(
                known.get(name) or LayerInfo(name, name, "Linear", "", 0, 0, True),
                recipe,
                changes,
                " and ".join(dict.fromkeys(_words(entry) for entry in entries)),
                "; ".join(reason for reason in reasons if reason),
            )
        )
    return tuple(found)


def without_idle(plan: Plan) -> Plan:
    """The plan without the entries of layers that compute as the rest does all the same."""
    departing = {departure.info.name for departure in departures(plan, ())}
    return replace(plan, entries=tuple(entry for entry in plan.entries if entry.layer in departing))


def whole_layers(plan: Plan) -> Plan:
    """The plan with every layer that departs wholly in BF16: what every target can express."""
    entries = [
        PlanEntry(
            d.info.name, BF16, reason=d.reason if d.whole == BF16 else f"{d.reason} (Cheaper: {d.asked}.)".strip()
        )
        for d in departures(plan, ())
    ]
    return Plan(plan.recipe, tuple(entries), plan.run)


def canonical(change: str) -> str:
    """The one text of a change that may be written in several ways, such as `delayed:te`."""
    return change if change == BF16 else parse_recipe(change).text


def _words(entry: PlanEntry) -> str:
    what = " of ".join(word for word in (entry.tensor, entry.gemm) if word) or "the layer"
    return f"{what} in {entry.change}"
