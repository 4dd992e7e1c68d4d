"""What two gaps and the noise say of a plan."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.verification.tail import Tail

SPREADS = 3.0
"""Standard deviations of the last losses of several seeds that a gap must exceed, where such were trained."""
ENOUGH_SEEDS = 3
DRIFT = 0.02
"""Share of the loss that a gap must exceed where fewer seeds than that were trained.

Two trainings that differ by rounding alone drift apart and stay apart, healthy small GPTs by up to 1.4 % of the loss
(docs/emulation.md): several times the band that the scatter of matched steps suggests.
"""
MIN_RELATIVE = 0.001
"""Share of the loss below which nobody would see a gap, however sure it is."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What a gap must exceed to mean anything."""

    threshold: float
    """In units of the loss: `least`, or `SPREADS` times `spread` where that is more."""
    least: float
    """`MIN_RELATIVE` of the baseline's loss, or `DRIFT` of it where the seeds are too few."""
    spread: float | None
    """Standard deviation of the last losses of BF16 trainings with several seeds; None: one seed."""
    n_seeds: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict, and the figures that it rests on."""

    verdict: str
    """recovered | not_recovered | no_effect | plan_hurts | recipe_fails | unknown"""
    noise: Noise
    recovered: float | None
    """Share of the recipe's gap that the plan takes away: 1 is all of it; None: there is no gap to recover."""
    recovered_error: float | None
    """What the noise of both gaps, the spread of seeds included, makes of it."""

    @property
    def is_helpful(self) -> bool:
        """Whether there is nothing to complain about."""
        return self.verdict in ("recovered", "no_effect", "recipe_fails")


def judge(recipe: Tail, plan: Tail, losses_of_seeds: Sequence[float] = (), *, min_recovery: float = 0.8) -> Judgement:
    """The verdict on a plan.

    Args:
        recipe, plan: gaps of the two runs to one baseline.
        losses_of_seeds: last losses of BF16 trainings, the baseline's included; fewer than 2 say nothing.
        min_recovery: share of the gap that the plan must take away.
    """
    noise = _noise(recipe.baseline_loss, losses_of_seeds)
    if recipe.gap is None or plan.gap is None:
        return Judgement("unknown", noise, None, None)
    if math.isinf(recipe.gap):
        harm = plan.gap > noise.threshold
        return Judgement("not_recovered" if harm else "recipe_fails", noise, None, None)
    if math.isinf(plan.gap):
        return Judgement("plan_hurts", noise, None, None)
    if recipe.error is None or plan.error is None:
        return Judgement("unknown", noise, None, None)
    if recipe.gap <= noise.threshold:
        if plan.gap <= noise.threshold:
            return Judgement("no_effect", noise, None, None)
        return Judgement("plan_hurts" if plan.gap > plan.error else "unknown", noise, None, None)
    # It scatters so much that it may as well be none; where several seeds were trained, their spread has decided that.
    if recipe.gap <= recipe.error and noise.n_seeds < ENOUGH_SEEDS:
        return Judgement("unknown", noise, None, None)
    share = 1 - plan.gap / recipe.gap
    errors = [max(error, noise.spread or 0.0) for error in (plan.error, recipe.error)]
    error = math.hypot(errors[0], errors[1] * plan.gap / recipe.gap) / recipe.gap
    return Judgement("recovered" if share >= min_recovery else "not_recovered", noise, share, error)


def _noise(loss: float | None, losses: Sequence[float]) -> Noise:
    spread = statistics.stdev(losses) if len(losses) > 1 else None
    least = (MIN_RELATIVE if len(losses) >= ENOUGH_SEEDS else DRIFT) * abs(loss or 0.0)
    return Noise(max(least, SPREADS * (spread or 0.0)), least, spread, max(1, len(losses)))
