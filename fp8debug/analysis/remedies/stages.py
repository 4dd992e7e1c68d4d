"""Trials of changes to a recipe with one scale a tensor: all of them measured at once, then judged cheapest first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fp8debug.analysis.remedies.affected import Affected
from fp8debug.analysis.remedies.context import Context
from fp8debug.analysis.remedies.judge import judge
from fp8debug.analysis.remedies.measured import Count, Measured, Operand
from fp8debug.analysis.remedies.passes import gap_counts
from fp8debug.analysis.remedies.per_tensor import Shifted, blind_operands, measure
from fp8debug.analysis.remedies.proposals import Proposal, proposals
from fp8debug.analysis.remedies.remedy import Trial
from fp8debug.analysis.run import Run
from fp8debug.recipes import DelayedScaling, Recipe, TensorRecipe


@dataclass(frozen=True, slots=True)
class _Batch:
    """Operands in one recipe, with scales from one source, of which the same kinds of change are measured."""

    recipe: Recipe
    source: str
    with_margins: bool


@dataclass(frozen=True, slots=True)
class _Facts:
    """(recipe, layer, tensor) -> what was measured, and in how many steps of all the scale is too large."""

    seen: dict[tuple[str, str, str], Measured]
    gaps: dict[tuple[str, str, str], Count]
    blind: set[Operand]
    """Operands without a histogram of any step that is wrong."""

    def is_fine(self, recipe: str, operand: Operand, context: Context) -> bool:
        """Whether nothing is wrong under that recipe."""
        measured = self.seen.get((recipe, *operand))
        gaps = self.gaps.get((recipe, *operand), Count())
        return (
            measured is not None
            and not measured.sampled.fails(context.thresholds)
            and not gaps.fails(context.thresholds)
        )


def per_tensor_trials(run: Run, entries: Sequence[Affected], context: Context) -> dict[Operand, list[Trial]]:
    """The trials of each operand, up to the first that fixes."""
    batches: dict[_Batch, list[Affected]] = defaultdict(list)
    for entry in entries:
        batches[_Batch(entry.recipe, entry.source, _is_clipped(entry))].append(entry)
    trials: dict[Operand, list[Trial]] = {}
    for batch, members in batches.items():
        facts = _measured(run, batch, [member.operand for member in members])
        for member in members:
            trials[member.operand] = list(_up_to_the_first_that_fixes(_trials(member, facts, context)))
    return trials


def is_fixed(trials: Sequence[Trial]) -> bool:
    """Whether the last trial fixes."""
    return bool(trials) and trials[-1].outcome == "fixes"


def _is_clipped(entry: Affected) -> bool:
    """Whether a smaller scale could help at all."""
    return entry.measured is None or "gap" in entry.measured.criteria or bool(entry.measured.overflow)


def _measured(run: Run, batch: _Batch, operands: Sequence[Operand]) -> _Facts:
    offered = {p for _, tensor in operands for p in proposals(batch.recipe, tensor)}
    shifted: list[Shifted] = []
    recipes: dict[str, Recipe] = {}
    for proposal in sorted(offered, key=lambda p: p.recipe.text):
        recipe, base = proposal.recipe, batch.recipe
        if proposal.kind == "margin" and not batch.with_margins:
            continue
        # What a framework had in force need not be what its recipe gives, and a part of a run has not all the history.
        follows = proposal.kind in ("margin", "format") and batch.source != "replayed"
        if follows and isinstance(recipe, DelayedScaling) and isinstance(base, DelayedScaling):
            shifted.append(Shifted(recipe, base))
        else:
            recipes[recipe.text] = recipe
    if batch.source == "framework" and isinstance(batch.recipe, (DelayedScaling, TensorRecipe)):
        recipes[batch.recipe.text] = batch.recipe
    if not shifted and not recipes:
        return _Facts({}, {}, set())
    histories = [recipe for recipe in recipes.values() if isinstance(recipe, DelayedScaling)]
    seen = measure(run, operands, list(recipes.values()), shifted)
    blind = blind_operands(run, batch.recipe.text)
    return _Facts(seen, gap_counts(run, operands, histories, shifted), blind)


def _trials(entry: Affected, facts: _Facts, context: Context) -> Iterator[Trial]:
    nothing = _why_nothing_is_known(entry, facts)
    is_unlike = entry.source == "framework" and facts.is_fine(entry.recipe.text, entry.operand, context)
    offered = list(proposals(entry.recipe, entry.tensor))
    if not _is_clipped(entry):
        margins = [proposal for proposal in offered if proposal.kind == "margin"]
        offered = offered[len(margins) :]
        for margin in margins[:1]:
            note = "nothing is clipped: a smaller scale cannot help"
            yield Trial("margin", margin.recipe.text, "not_enough", note=note)
    for proposal in offered:
        key = (proposal.recipe.text, *entry.operand)
        if nothing:
            yield Trial(proposal.kind, proposal.recipe.text, "unknown", note=nothing)
        elif context.is_cut and proposal.kind == "history":
            note = "a part of the run does not have the whole history"
            yield Trial(proposal.kind, proposal.recipe.text, "unknown", note=note)
        elif is_unlike and not _replaces_the_scale(proposal, entry):
            yield _no_answer(proposal)
        else:
            yield judge(entry, proposal, facts.seen.get(key), facts.gaps.get(key), context)


def _why_nothing_is_known(entry: Affected, facts: _Facts) -> str:
    """Empty where the histograms can tell."""
    if entry.operand in facts.blind:
        return "no histogram of a step that is wrong"
    if all((layer, tensor) != entry.operand for _, layer, tensor in facts.seen):
        return "nothing to judge: no histogram, too few values, or only the start of a history"
    return ""


def _replaces_the_scale(proposal: Proposal, entry: Affected) -> bool:
    """Whether it is known what a framework would make of the change that has other scales than its recipe gives.

    A margin and a format follow from the scales that were recorded; current scaling has nothing of them.
    """
    return proposal.kind == "current" or (
        proposal.kind in ("margin", "format") and isinstance(entry.recipe, DelayedScaling)
    )


def _no_answer(proposal: Proposal) -> Trial:
    """Replayed, nothing is wrong with the recipe: the framework has another scale in force."""
    note = "its scale is not what its recipe gives: look for the fault in how it is updated"
    return Trial(proposal.kind, proposal.recipe.text, "unknown", note=note)


def _up_to_the_first_that_fixes(trials: Iterable[Trial]) -> Iterator[Trial]:
    for trial in trials:
        yield trial
        if trial.outcome == "fixes":
            return
