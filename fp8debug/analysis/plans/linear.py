"""What torchao and those that build on it can express: an nn.Linear is converted, or it is not."""

from __future__ import annotations

from fp8debug.analysis.plans.export import Request
from fp8debug.analysis.plans.paths import linear_fqn
from fp8debug.plans import BF16
from fp8debug.recipes import DelayedScaling, parse_recipe

NO_DELAYED = (
    "The plan was made for delayed scaling, which torchao does not have: make it for the recipe that you train with "
    "(--recipe)."
)


def linear_departures(request: Request) -> tuple[list[tuple[str, str]], list[str]]:
    """Each nn.Linear that departs with its comment; and what was widened or left out, a sentence each."""
    members, notes = [], []
    if isinstance(parse_recipe(request.plan.recipe), DelayedScaling) and request.departures:
        notes.append(NO_DELAYED)
    for departure in request.departures:
        name = linear_fqn(departure.info)
        if name is None:
            kind = departure.info.kind
            notes.append(f"{departure.info.name}: left out, since it is no nn.Linear ({kind}) and is never converted.")
            continue
        comment = departure.reason or departure.asked
        if departure.whole != BF16:
            note = f"Widened: the plan has {departure.asked}, and a layer is converted or not; this one is not"
            notes.append(f"{departure.info.name}: {note}")
            comment = f"{comment.rstrip('.')}. {note}"
        members.append((name, comment))
    return members, notes
