"""The search: for each operand that is wrong, the cheapest change that brings it inside the rules."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from fp8debug.analysis.remedies.affected import Affected, affected
from fp8debug.analysis.remedies.context import BLOCK_KINDS, Context, gather
from fp8debug.analysis.remedies.judge import bad_results, measured_results, shortfall, trial_of
from fp8debug.analysis.remedies.measured import Measured, Operand
from fp8debug.analysis.remedies.remedy import Remedy, Trial
from fp8debug.analysis.remedies.stages import is_fixed, per_tensor_trials
from fp8debug.analysis.run import Run
from fp8debug.gemms import gemms_reading
from fp8debug.plans import BF16
from fp8debug.recipes import Recipe, parse_recipe


def search(
    run: Run, operands: Sequence[Operand] | None = None, *, recipe: Recipe | str | None = None
) -> tuple[Remedy, ...]:
    """The cheapest change for each operand that is outside the rules; what was tried before it is kept.

    Tried in this order: margin, history length, most_recent, other element format, current scaling, block scaling,
    MXFP8, a single GEMM in BF16, the whole layer in BF16. A change fixes an operand when the candidate rule would no
    longer list it, and when the results of the GEMMs that read it, where they were measured under that recipe, keep
    what rounding both operands leaves.

    Args:
        run: an open run.
        operands: (layer, tensor) of x, w, dy; None: all that are outside the rules.
        recipe: what the operands are in now; None: what the framework, or the emulation, computed with; in a run in
            BF16 the recipe under which each operand is worst.

    Returns:
        One a operand, worst first, or in the order asked for.

    Raises:
        UsageError: an operand that was not sampled, or an unknown recipe.
        Fp8DebugError: no operand was asked for, and none is known under the block recipe in use.
    """
    given = parse_recipe(recipe) if isinstance(recipe, str) else recipe
    entries = affected(run, operands, given)
    wrong = [entry for entry in entries if entry.is_wrong]
    if not wrong:
        return tuple(_remedy(entry, []) for entry in entries)
    context = gather(run, sorted({entry.layer for entry in wrong}))
    trials = per_tensor_trials(run, wrong, context)
    for entry in wrong:
        tried = trials[entry.operand]
        if not is_fixed(tried):
            tried += _dearer_trials(entry, context)
    return tuple(_remedy(entry, trials.get(entry.operand, [])) for entry in entries)


def _remedy(entry: Affected, trials: list[Trial]) -> Remedy:
    if entry.measured is None:
        outcome, note = "unknown", "not judged under this recipe"
    else:
        outcome, note = ("not_enough", shortfall(entry.measured)) if entry.is_wrong else ("fine", "inside the rules")
    present = trial_of("in_use", entry.recipe.text, outcome, entry.measured, note)
    return Remedy(*entry.operand, tuple(trials), trials[-1] if trials else None, entry.recipe.text, present)


def _dearer_trials(entry: Affected, context: Context) -> Iterator[Trial]:
    """Block recipes, then BF16; ends with the first that fixes."""
    halves: dict[str, str] = {}
    if len(entry.failing_gemms) == 1 and len(gemms_reading(entry.tensor)) > 1:
        halves[entry.recipe.text] = entry.failing_gemms[0]
    for kind in BLOCK_KINDS:
        if kind == entry.recipe.kind or (kind == "block" and entry.recipe.kind == "mxfp8"):
            continue
        for trial in _block_trials(kind, entry, context, halves):
            yield trial
            if trial.outcome == "fixes":
                return
    if halves:
        recipe, gemm = next(iter(halves.items()))
        yield _single_gemm(recipe, gemm, entry, context)
        return
    yield Trial("layer_bf16", BF16, "fixes", note="nothing cheaper is known to help")


def _block_trials(kind: str, entry: Affected, context: Context, halves: dict[str, str]) -> Iterator[Trial]:
    recipes = [text for text in context.block_recipes if parse_recipe(text).kind == kind]
    if not recipes:
        yield Trial(kind, kind, "not_recorded", note=f"record it: {context.commands[kind]}")
    for text in recipes:
        seen = _in_blocks(text, entry, context)
        if not seen:
            yield Trial(kind, text, "not_recorded", note="not measured for this operand")
            continue
        failing = [gemm for gemm, measured in seen.items() if measured.sampled.fails(context.thresholds)]
        bad = context.bad_gemms(text, *entry.operand)
        outside = {*failing, *bad}
        if not outside:
            results = {gemm: r for gemm in seen if (r := context.gemms.get((text, entry.layer, gemm))) is not None}
            yield trial_of(kind, text, "fixes", _worst(seen), measured_results(results))
            continue
        if len(outside) == 1 and outside < seen.keys():
            halves.setdefault(text, next(iter(outside)))
        reasons = [f"in {gemm}: {shortfall(seen[gemm])}" for gemm in failing]
        reasons += [bad_results({gemm: result}) for gemm, result in bad.items() if gemm not in failing]
        worst = _worst({gemm: seen[gemm] for gemm in outside if gemm in seen} or seen)
        yield trial_of(kind, text, "not_enough", worst, "; ".join(reasons))


def _single_gemm(recipe: str, gemm: str, entry: Affected, context: Context) -> Trial:
    """The GEMM that fails in BF16, the others in the block recipe under which they are fine."""
    others = {name: seen for name, seen in _in_blocks(recipe, entry, context).items() if name != gemm}
    rest = None if recipe == entry.recipe.text else recipe
    results = {name: r for name in others if (r := context.gemms.get((recipe, entry.layer, name))) is not None}
    note = measured_results(results) or f"{' and '.join(others)} inside the rules"
    return trial_of("gemm_bf16", BF16, "fixes", _worst(others), note, gemm=gemm, rest=rest)


def _in_blocks(recipe: str, entry: Affected, context: Context) -> dict[str, Measured]:
    keys = {gemm: (recipe, *entry.operand, gemm) for gemm in gemms_reading(entry.tensor)}
    return {gemm: context.blocks[key] for gemm, key in keys.items() if key in context.blocks}


def _worst(seen: dict[str, Measured]) -> Measured:
    return min(seen.values(), key=lambda m: (-(m.underflow or 0.0), m.sqnr_db or math.inf))
