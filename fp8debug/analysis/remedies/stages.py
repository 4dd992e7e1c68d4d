"""Trials of per-tensor changes, kind by kind, so that only what is not yet fixed is measured again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from fp8debug.analysis.remedies.affected import Affected
from fp8debug.analysis.remedies.context import Context
from fp8debug.analysis.remedies.judge import judge
from fp8debug.analysis.remedies.measured import Count, Measured, Operand
from fp8debug.analysis.remedies.passes import gap_counts
from fp8debug.analysis.remedies.per_tensor import Shifted, measure
from fp8debug.analysis.remedies.proposals import Proposal, proposals
from fp8debug.analysis.remedies.remedy import Trial
from fp8debug.analysis.run import Run
from fp8debug.recipes import DelayedScaling

PER_TENSOR_KINDS = ("margin", "history", "most_recent", "format", "current")

_Measurements = tuple[dict[tuple[str, str, str], Measured], dict[tuple[str, str, str], Count]]


def per_tensor_trials(run: Run, entries: Sequence[Affected], context: Context) -> dict[Operand, list[Trial]]:
    """The trials of each operand, up to the first that fixes."""
    trials: dict[Operand, list[Trial]] = {entry.operand: [] for entry in entries}
    offered = {entry.operand: list(proposals(entry.recipe, entry.tensor)) for entry in entries}
    unlike = _unlike_their_recipe(run, entries)
    for kind in PER_TENSOR_KINDS:
        batches: dict[tuple[Proposal, ...], list[Affected]] = defaultdict(list)
        for entry in entries:
            wanted = tuple(p for p in offered[entry.operand] if p.kind == kind)
            if not wanted or is_fixed(trials[entry.operand]):
                continue
            known = _without_measuring(entry, wanted[0], entry.operand in unlike)
            if known is not None:
                trials[entry.operand].append(known)
            else:
                batches[wanted].append(entry)
        for wanted, batch in batches.items():
            _try(run, batch, wanted, context, trials)
    return trials


def is_fixed(trials: Sequence[Trial]) -> bool:
    """Whether the last trial fixes."""
    return bool(trials) and trials[-1].outcome == "fixes"


def _try(
    run: Run,
    batch: Sequence[Affected],
    wanted: Sequence[Proposal],
    context: Context,
    trials: dict[Operand, list[Trial]],
) -> None:
    for source in sorted({entry.source for entry in batch}):
        part = [entry for entry in batch if entry.source == source]
        seen, gaps = _measured(run, part, wanted)
        for entry in part:
            for proposal in wanted:
                key = (proposal.recipe.text, *entry.operand)
                trial = judge(entry, proposal, seen.get(key), gaps.get(key), context)
                trials[entry.operand].append(trial)
                if trial.outcome == "fixes":
                    break


def _measured(run: Run, part: Sequence[Affected], wanted: Sequence[Proposal]) -> _Measurements:
    operands = [entry.operand for entry in part]
    base, source = part[0].recipe, part[0].source
    shifted, recipes = [], []
    for proposal in wanted:
        recipe = proposal.recipe
        follows = proposal.kind in ("margin", "format") and source == "framework"
        if follows and isinstance(recipe, DelayedScaling) and isinstance(base, DelayedScaling):
            shifted.append(Shifted(recipe, base))
        else:
            recipes.append(recipe)
    histories = [recipe for recipe in recipes if isinstance(recipe, DelayedScaling)]
    return measure(run, operands, recipes, shifted), gap_counts(run, operands, histories, shifted)


def _without_measuring(entry: Affected, proposal: Proposal, is_unlike: bool) -> Trial | None:
    """The trial where the answer is known beforehand."""
    text, seen = proposal.recipe.text, entry.measured
    if proposal.kind == "margin" and seen is not None and "gap" not in seen.criteria and not seen.overflow:
        return Trial("margin", text, "not_enough", note="nothing is clipped: a smaller scale cannot help")
    if proposal.kind in ("history", "most_recent") and is_unlike:
        note = "its scale is not what its recipe gives: another history is no answer to that"
        return Trial(proposal.kind, text, "unknown", note=note)
    return None


def _unlike_their_recipe(run: Run, entries: Sequence[Affected]) -> set[Operand]:
    """Operands whose framework has other scales in force than its own recipe gives: replayed, nothing is wrong."""
    own = [e for e in entries if e.source == "framework" and isinstance(e.recipe, DelayedScaling)]
    unlike = set()
    for text in sorted({entry.recipe.text for entry in own}):
        same = [entry for entry in own if entry.recipe.text == text]
        operands, recipe = [entry.operand for entry in same], same[0].recipe
        assert isinstance(recipe, DelayedScaling)
        seen, gaps = measure(run, operands, [recipe]), gap_counts(run, operands, [recipe])
        for operand in operands:
            replayed = seen.get((text, *operand))
            if (
                replayed is not None
                and not replayed.sampled.fails(run.thresholds)
                and not gaps.get((text, *operand), Count()).fails(run.thresholds)
            ):
                unlike.add(operand)
    return unlike
