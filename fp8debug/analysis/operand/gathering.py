"""Gather what is known of an operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.diagnosis import RuleBook
from fp8debug.analysis.distribution import Distribution, Place, distributions
from fp8debug.analysis.operand.courses import courses
from fp8debug.analysis.operand.facts import channels, facts, payload
from fp8debug.analysis.operand.fits import fits
from fp8debug.analysis.operand.records import Facts, Operand, Standing
from fp8debug.analysis.operand.standing import Judgement
from fp8debug.analysis.run import Run
from fp8debug.errors import UsageError

_SAMPLED = """
select distinct step
from tensors
where sampled and layer = $layer and tensor = $tensor and is_judged_pass(pass)
order by step
"""
_RECIPES = """
select distinct recipe, is_of_blocks
from (
    select layer, tensor, recipe, false as is_of_blocks from errors where source <> 'payload'
    union all
    select layer, tensor, recipe, true from blocks where sum_x2 is not null
)
where layer = $layer and tensor = $tensor
order by is_of_blocks, recipe
"""


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is looked at."""

    facts: Facts
    standing: Standing
    step: int | None
    recipe: str | None


def look(
    run: Run,
    layer: str,
    tensors: Sequence[str],
    *,
    step: int | None = None,
    recipe: str | None = None,
    rules: RuleBook | None = None,
) -> tuple[Operand, ...]:
    """Look at tensors of one layer closely.

    Args:
        run: an open run; at best opened at this layer, since every rule is asked.
        layer: as it was recorded.
        tensors: of those recorded of it.
        step: the nearest step of which values were counted is taken; None: the last, and of an operand that rules name
            the last among the steps they name.
        recipe: one that was recorded, or its kind; None: the one under which it is worst, else a recorded one.
        rules: what findings come from; None: the rules as they are shipped.

    Raises:
        UsageError: a recipe that was not recorded of any of them.
    """
    judgement = Judgement.of(run, rules)
    recipes = {tensor: _recipes(run, layer, tensor) for tensor in tensors}
    asked = None if recipe is None else _meant(recipe, sorted({each for known in recipes.values() for each in known}))
    chosen = {}
    for tensor in tensors:
        known, standing = facts(run, layer, tensor), judgement.standing(run, layer, tensor)
        at = _step(known.counted_steps or _sampled(run, layer, tensor), standing, step)
        chosen[tensor] = _Choice(known, standing, at, asked or _recipe(run, standing, recipes[tensor]))
    places: dict[Place, str | None] = {(layer, t, c.step): c.recipe for t, c in chosen.items() if c.step is not None}
    spread = {each.tensor: each for each in distributions(run, list(places), places)}
    return tuple(_operand(run, layer, tensor, chosen[tensor], step, spread.get(tensor)) for tensor in tensors)


def _operand(
    run: Run, layer: str, tensor: str, choice: _Choice, asked_step: int | None, spread: Distribution | None
) -> Operand:
    return Operand(
        layer=layer,
        tensor=tensor,
        facts=choice.facts,
        standing=choice.standing,
        step=choice.step,
        asked_step=asked_step,
        recipe=choice.recipe,
        distribution=spread,
        fits=fits(run, layer, tensor, choice.step) if choice.step is not None else (),
        courses=courses(run, layer, tensor),
        payload=payload(run, layer, tensor, choice.step),
        channels=channels(run, layer, tensor),
    )


def _sampled(run: Run, layer: str, tensor: str) -> tuple[int, ...]:
    return tuple(step for (step,) in run.sql(_SAMPLED, layer=layer, tensor=tensor).fetchall())


def _step(known: Sequence[int], standing: Standing, asked: int | None) -> int | None:
    if not known:
        return None
    if asked is not None:
        return min(known, key=lambda step: (abs(step - asked), step))
    if standing.verdicts:
        worst = standing.verdicts[0]
        within = [step for step in known if worst.first_step <= step <= worst.last_step]
        return (within or known)[-1]
    return known[-1]


def _recipes(run: Run, layer: str, tensor: str) -> list[str]:
    """Those recorded of an operand, per-tensor recipes first."""
    return [recipe for recipe, _ in run.sql(_RECIPES, layer=layer, tensor=tensor).fetchall()]


def _meant(word: str, known: Sequence[str]) -> str:
    meant = [word] if word in known else [recipe for recipe in known if recipe.partition(":")[0] == word]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise UsageError(f"recipe {word!r} is several here: {', '.join(meant)}; name one of them")
    raise UsageError(
        f"recipe {word!r} was not recorded of it; there is: {', '.join(known) or 'none'}; `fp8debug whatif --recipe "
        f"{word}` works out what others would do"
    )


def _recipe(run: Run, standing: Standing, known: Sequence[str]) -> str | None:
    """The one under which it is worst; else the framework's, whatever the run was recorded under, or the first."""
    if standing.verdicts:
        return standing.verdicts[0].recipe
    in_order = [recipe for recipe in run.manifest.recipes if recipe in known]
    others = [recipe for recipe in known if recipe not in in_order]
    return next(iter((*others, *in_order)), None)
