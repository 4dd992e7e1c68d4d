"""From the run directories of a verification to its record."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fp8debug.analysis.compare.curve import Curve
from fp8debug.analysis.compare.sources import read_source
from fp8debug.analysis.diagnosis import RuleBook
from fp8debug.analysis.run import open_run
from fp8debug.analysis.verification.exposure import exposed
from fp8debug.analysis.verification.judge import judge
from fp8debug.analysis.verification.record import Exposed, TrainedRun, Verification, VerifiedRun
from fp8debug.analysis.verification.tail import Tail, tail_gap
from fp8debug.errors import some
from fp8debug.plans import BF16, Plan
from fp8debug.rundir import RunDir


def verify_runs(
    trained: Sequence[TrainedRun],
    plan: Plan,
    *,
    recipe: str | None = None,
    plan_file: str = "",
    min_recovery: float = 0.8,
    rules: RuleBook | None = None,
    thresholds: Mapping[str, float] | None = None,
) -> Verification:
    """Judge a plan by trainings that differ in nothing else.

    Args:
        trained: one of each of bf16, recipe and plan, and any number of seeds.
        plan: what the third was run with.
        recipe: what the second was run with; None: the plan's own.
        plan_file: for messages.
        min_recovery: share of the recipe's gap that the plan must take away.
        rules: what findings come from; None: the rules shipped.
        thresholds: numbers that replace defaults of the candidate rule, as for `open_run`.

    Raises:
        Fp8DebugError: a run cannot be read, or holds no loss.
    """
    plan = plan if recipe is None else replace(plan, recipe=recipe)
    used = {"recipe": Plan(plan.recipe), "plan": plan}
    curves = [read_source(run.path) for run in trained]
    base = next(curve for run, curve in zip(trained, curves, strict=True) if run.kind == "bf16")

    def found(run: TrainedRun) -> tuple[Exposed, ...]:
        if run.kind == "seed":
            return ()
        with open_run(run.path, thresholds=thresholds) as opened:
            return exposed(opened, used.get(run.kind, Plan(BF16)), rules)

    runs = tuple(_verified(run, curve, base, found(run)) for run, curve in zip(trained, curves, strict=True))
    tails = {run.kind: run.tail for run in runs if run.tail is not None}
    losses = [run.loss for run in runs if run.kind in ("bf16", "seed") and run.loss is not None]
    asked = tuple(dict.fromkeys(entry.layer for entry in plan.entries))
    there = _layers(next(run.path for run in trained if run.kind == "plan"))
    before, after = ({run.kind: run.exposed for run in runs}[kind] for kind in ("recipe", "plan"))
    return Verification(
        recipe=plan.recipe,
        plan_file=plan_file,
        plan_layers=tuple(layer for layer in asked if layer in there),
        layers_in_bf16=tuple(layer for layer in plan.layers_in_bf16 if layer in there),
        flops_kept=plan.flops_kept,
        judgement=judge(tails["recipe"], tails["plan"], losses, min_recovery=min_recovery),
        min_recovery=min_recovery,
        runs=runs,
        resolved=_without(before, after),
        remaining=tuple(entry for entry in before if entry in after),
        new=_without(after, before),
        notes=(*_notes(runs, base), *_notes_on_plan([layer for layer in asked if layer not in there], plan)),
    )


def _verified(run: TrainedRun, curve: Curve, base: Curve, found: tuple[Exposed, ...]) -> VerifiedRun:
    against = tail_gap(base, curve)
    is_emulated = run.kind in ("recipe", "plan")
    if is_emulated and run.exit_code:  # it did not get to where the baseline got
        against = replace(against, gap=math.inf, error=None)
    return VerifiedRun(
        kind=run.kind,
        path=str(run.path),
        seed=run.seed,
        exit_code=run.exit_code,
        wall_s=run.wall_s,
        n_steps=len(curve),
        loss=against.loss,
        grad_norm=_grad_norm(curve, against),
        tail=against if is_emulated else None,
        exposed=found,
    )


def _grad_norm(curve: Curve, tail: Tail) -> float | None:
    if curve.grad_norm is None or tail.first_step is None or tail.last_step is None:
        return None
    norms = curve.grad_norm[(curve.steps >= tail.first_step) & (curve.steps <= tail.last_step)]
    norms = norms[np.isfinite(norms)]
    return float(np.median(norms)) if norms.size else None


def _without(entries: Sequence[Exposed], others: Sequence[Exposed]) -> tuple[Exposed, ...]:
    return tuple(entry for entry in entries if entry not in others)


def _layers(path: Path) -> set[str]:
    """Names of the layers that were taken, and so could be emulated."""
    return {layer.name for layer in RunDir(path).read_manifest().layers if layer.matched}


def _notes(runs: Sequence[VerifiedRun], base: Curve) -> Iterator[str]:
    by_kind = {run.kind: run for run in runs}
    for kind, word in (("recipe", "the recipe's run"), ("plan", "the run with the plan")):
        run = by_kind[kind]
        if run.exit_code:
            yield f"{word} ended with exit code {run.exit_code} after {run.n_steps} of {len(base)} steps"
        elif run.n_steps != len(base):
            yield f"{word} has {run.n_steps} steps with a loss, the baseline {len(base)}: those of both are compared"
        if run.tail is not None and run.tail.n_nonfinite:
            yield f"the loss of {word} is not finite at {run.tail.n_nonfinite} steps"
        if run.tail is not None and run.tail.n_far:
            yield (
                f"{run.tail.n_far} of the last {run.tail.n_steps} steps of {word} are far from the others and in no "
                "gap: `fp8debug compare` tells of its spikes"
            )
    seeds = [run for run in runs if run.kind == "seed"]
    if any(run.loss == by_kind["bf16"].loss for run in seeds):
        yield (
            "a BF16 training with another seed gave the very same loss, so the script seeds itself: write {seed} where "
            "its arguments should hold the seed, as in --seed {seed}"
        )


def _notes_on_plan(missing: Sequence[str], plan: Plan) -> Iterator[str]:
    if missing:
        yield f"the plan is about layers that were not emulated, since the model has none of that name: {some(missing)}"
    if not plan.entries:
        yield "the plan changes nothing"
