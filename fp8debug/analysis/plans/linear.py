"""What torchao and those that build on it can express: an nn.Linear is converted, or it is not."""

from __future__ import annotations

from dataclasses import dataclass

from fp8debug.analysis.plans.export import Note, Request
from fp8debug.analysis.plans.paths import linear_fqn
from fp8debug.plans import BF16, PlanEntry
from fp8debug.recipes import DelayedScaling, parse_recipe

NO_DELAYED = (
    "The plan was made for delayed scaling, which torchao does not have: make it for the recipe that you train with "
    "(--recipe)."
)


@dataclass(frozen=True, slots=True)
class Member:
    """An nn.Linear that is not converted."""

    layer: str
    """Its name in the run."""
    fqn: str
    """Its name in its own model."""
    comment: str

    @property
    def entry(self) -> PlanEntry:
        """As an entry of a plan."""
        return PlanEntry(self.layer, BF16, reason=self.comment)


def linear_departures(request: Request) -> tuple[list[Member], list[Note]]:
    """Each nn.Linear that departs; and what was widened or left out."""
    members: list[Member] = []
    notes: list[Note] = []
    if isinstance(parse_recipe(request.plan.recipe), DelayedScaling) and request.departures:
        notes.append(Note("", NO_DELAYED))
    for departure in request.departures:
        name = linear_fqn(departure.info)
        if name is None:
            kind = departure.info.kind
            notes.append(Note(departure.info.name, f"Not in the file: it is no nn.Linear ({kind}) and never converted"))
            continue
        comment = departure.reason or departure.asked
        if departure.whole != BF16:
            note = f"Widened: the plan has {departure.asked}, and a layer is converted or not; this one is not"
            notes.append(Note(departure.info.name, note))
            comment = f"{comment.rstrip('.')}. {note}"
        members.append(Member(departure.info.name, name, comment))
    return members, notes
