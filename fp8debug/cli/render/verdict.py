"""The verdict of a verification in words."""

from __future__ import annotations

import math

from fp8debug.analysis.verification import Tail, Verification

_HEADLINES = {
    "recovered": "the plan recovers the loss",
    "not_recovered": "the plan does not recover the loss",
    "no_effect": "no measurable effect on the loss",
    "plan_hurts": "the plan itself harms",
    "recipe_fails": "the plan saves the training",
    "unknown": "not enough evidence",
}


def headline(verified: Verification) -> str:
    """A few words."""
    return _HEADLINES[verified.judgement.verdict]


def sentence(verified: Verification) -> str:
    """One or two sentences with the figures."""
    recipe, plan = verified.of("recipe").tail, verified.of("plan").tail
    assert recipe is not None and plan is not None
    words = {
        "recovered": _recovered,
        "not_recovered": _not_recovered,
        "no_effect": _no_effect,
        "plan_hurts": _plan_hurts,
        "recipe_fails": _recipe_fails,
        "unknown": _unknown,
    }
    return words[verified.judgement.verdict](verified, recipe, plan)


def gap_text(tail: Tail) -> str:
    """`+0.2513 (+9.4 %)`."""
    if tail.gap is None:
        return "-"
    if math.isinf(tail.gap):
        return "breaks down"
    share = f" ({tail.gap / abs(tail.baseline_loss):+.1%})" if tail.baseline_loss else ""
    return f"{tail.gap:+.4f}{share}".replace("%", " %")


def _recovered(verified: Verification, recipe: Tail, plan: Tail) -> str:
    return (
        f"The plan recovers {_share(verified)} of what {verified.recipe} costs: the gap of the loss to BF16 goes from "
        f"{gap_text(recipe)} to {gap_text(plan)}."
    )


def _not_recovered(verified: Verification, recipe: Tail, plan: Tail) -> str:
    asked = f"at least {verified.min_recovery:.0%} was asked for".replace("%", " %")
    share = verified.judgement.recovered
    if share is None:
        how = (
            "and with the plan it does too"
            if math.isinf(plan.gap or 0.0)
            else f"with the plan {gap_text(plan)} is left"
        )
        return f"With {verified.recipe} the training breaks down, {how}."
    change = f"the gap of the loss to BF16 goes from {gap_text(recipe)} to {gap_text(plan)}"
    if share <= 0:
        return f"The plan makes it no better: {change}; {asked}."
    return f"The plan recovers only {_share(verified)} of what {verified.recipe} costs, {asked}: {change}."


def _no_effect(verified: Verification, recipe: Tail, plan: Tail) -> str:
    return (
        f"No measurable effect on the loss: the gap of {verified.recipe} to BF16 is {gap_text(recipe)}, with the plan "
        f"{gap_text(plan)}; one below {verified.judgement.noise.threshold:.4f} is noise."
    )


def _plan_hurts(verified: Verification, recipe: Tail, plan: Tail) -> str:
    if math.isinf(plan.gap or 0.0):
        alone = f"with {verified.recipe} alone its gap to BF16 is {gap_text(recipe)}"
        return f"With the plan the training breaks down; {alone}."
    return (
        f"{verified.recipe} alone has no measurable effect on the loss ({gap_text(recipe)}), but with the plan it lies "
        f"{gap_text(plan)} above BF16."
    )


def _recipe_fails(verified: Verification, recipe: Tail, plan: Tail) -> str:
    return (
        f"With {verified.recipe} the training breaks down: its loss is not finite at the end, or it stopped early. "
        f"With the plan the gap to BF16 is {gap_text(plan)}."
    )


def _unknown(verified: Verification, recipe: Tail, plan: Tail) -> str:
    if not recipe.n_steps or not plan.n_steps:
        return (
            "The runs have no step in common at which the loss of the BF16 baseline is finite: nothing can be compared."
        )
    for words, tail in ((verified.recipe, recipe), (f"{verified.recipe} with the plan", plan)):
        if tail.error is not None and (tail.gap or 0.0) > verified.judgement.noise.threshold:
            return (
                f"Over the last {tail.n_steps} steps the gap of {words} to BF16 is {gap_text(tail)}, but it scatters "
                f"so much (95 % band: plus or minus {tail.error:.4f}) that it may be none. Train for more steps."
            )
    return (
        f"Only {recipe.n_steps} steps can be compared, too few to tell a gap from noise: {verified.recipe} has "
        f"{gap_text(recipe)}, with the plan {gap_text(plan)}. Train for at least 16 steps."
    )


def _share(verified: Verification) -> str:
    share = verified.judgement.recovered or 0.0
    return "all" if share >= 0.995 else f"{100 * share:.0f} %"
