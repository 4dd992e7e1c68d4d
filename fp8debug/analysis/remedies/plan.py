"""Remedies as a fallback plan, with a sentence for each entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from fp8debug.analysis.plans.flops import flops_kept
from fp8debug.analysis.remedies.in_use import recipe_in_use
from fp8debug.analysis.remedies.judge import share
from fp8debug.analysis.remedies.layer_set import Fallback
from fp8debug.analysis.remedies.noise import gemm_flops
from fp8debug.analysis.remedies.recorded import blocks
from fp8debug.analysis.remedies.remedy import Remedy, Trial
from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif import default_recipes
from fp8debug.gemms import GEMMS
from fp8debug.plans import BF16, Plan, PlanEntry
from fp8debug.recipes import BlockRecipe, parse_recipe

_NAMES = {
    "margin": "a margin",
    "history": "another history length",
    "most_recent": "most_recent",
    "format": "the other format",
    "current": "current scaling",
    "block": "block scaling",
    "mxfp8": "MXFP8",
}


def plan_of(run: Run, remedies: Sequence[Remedy], fallback: Fallback | None = None) -> Plan:
    """The plan that carries out what was chosen.

    Both operands of a GEMM share a way of scaling: a block recipe, and what a single GEMM in BF16 leaves to one, is an
    entry for the whole layer. A layer of which one operand needs BF16 everywhere gets that one entry alone.

    Args:
        run: the run that the remedies are for.
        remedies: from `search`.
        fallback: layers to take out of low precision besides.
    """
    texts = Counter(remedy.recipe for remedy in remedies)
    in_use = recipe_in_use(run)
    recipe = texts.most_common(1)[0][0] if texts else (in_use or default_recipes(run)[0]).text
    chosen = [remedy for remedy in remedies if remedy.chosen is not None]
    entries: list[PlanEntry] = []
    for layer in dict.fromkeys(remedy.layer for remedy in chosen):
        entries += _of_layer(run, [remedy for remedy in chosen if remedy.layer == layer])
    if fallback is not None:
        recipe = fallback.recipe if not chosen else recipe
        entries = _with_fallback(entries, chosen, fallback)
    plan = Plan(recipe, tuple(entries), run.manifest.run_id)
    return replace(plan, flops_kept=flops_kept(plan, gemm_flops(run)))


def _of_layer(run: Run, remedies: Sequence[Remedy]) -> Iterator[PlanEntry]:
    layer = remedies[0].layer
    single = {gemm: causes for gemm in GEMMS if (causes := [r for r in remedies if _gemm(r) == gemm])}
    recipes = sorted({text for remedy in remedies if (text := _layer_recipe(remedy)) is not None})
    whole = [remedy for remedy in remedies if remedy.chosen is not None and remedy.chosen.kind == "layer_bf16"]
    if not whole and (
        len(recipes) > 1
        or len(single) == len(GEMMS)
        or any(not _is_fine_in(run, remedy, text, single) for remedy in remedies for text in recipes)
    ):
        whole = list(remedies)
    if whole:
        yield PlanEntry(layer, BF16, reason=_reasons(whole))
        return
    for text in recipes:
        yield PlanEntry(layer, text, reason=_reasons([r for r in remedies if _layer_recipe(r) == text]))
    for gemm, causes in single.items():
        yield PlanEntry(layer, BF16, gemm=gemm, reason=_reasons(causes))
    for remedy in remedies:
        if remedy.chosen is not None and not recipes and _gemm(remedy) is None:
            yield PlanEntry(layer, remedy.chosen.change, tensor=remedy.tensor, reason=reason(remedy))


def _gemm(remedy: Remedy) -> str | None:
    return remedy.chosen.gemm if remedy.chosen is not None else None


def _reasons(remedies: Sequence[Remedy]) -> str:
    return " ".join(map(reason, remedies))


def _layer_recipe(remedy: Remedy) -> str | None:
    """The block recipe that a remedy puts the layer in."""
    trial = remedy.chosen
    if trial is None or trial.kind == "layer_bf16":
        return None
    text = trial.rest if trial.gemm is not None else trial.change
    return text if text is not None and isinstance(parse_recipe(text), BlockRecipe) else None


def _is_fine_in(run: Run, remedy: Remedy, recipe: str, spared: Container[str]) -> bool:
    """Whether an operand is inside the rules in the block recipe that its layer gets, but for `spared` GEMMs."""
    if _layer_recipe(remedy) == recipe:
        return True
    seen = [
        measured
        for (_, _, tensor, gemm), measured in blocks(run, [remedy.layer], [recipe]).items()
        if tensor == remedy.tensor and gemm not in spared
    ]
    return bool(seen) and not any(measured.sampled.fails(run.thresholds) for measured in seen)


def _with_fallback(entries: Sequence[PlanEntry], remedies: Sequence[Remedy], fallback: Fallback) -> list[PlanEntry]:
    sqnr = {entry.layer: entry.sqnr_db for entry in fallback.noise}
    kept = [entry for entry in entries if entry.layer not in fallback.layers]
    for layer in fallback.layers:
        causes = [_now(remedy) for remedy in remedies if remedy.layer == layer and remedy.present.note]
        db = sqnr.get(layer)
        noise = f"its GEMMs keep {db:.1f} dB" if db is not None else "the noise of its GEMMs is not known"
        kept.append(PlanEntry(layer, BF16, reason="; ".join([*causes, noise]) + "."))
    return kept


def reason(remedy: Remedy) -> str:
    """One sentence: what is wrong, what did not help, what does."""
    trial = remedy.chosen
    if trial is None:
        return f"{remedy.tensor}: nothing is wrong under {remedy.recipe}."
    failed = [name for kind, name in _NAMES.items() if any(_is_short(tried, kind) for tried in remedy.trials)]
    parts = [_now(remedy)]
    if failed:
        parts.append(f"{_listed(failed)} {'does' if len(failed) == 1 else 'do'} not help enough")
    parts.append(_gives(trial))
    return "; ".join(parts) + "."


def _now(remedy: Remedy) -> str:
    return f"{remedy.tensor} in {remedy.recipe}: {remedy.present.note}"


def _is_short(trial: Trial, kind: str) -> bool:
    return trial.kind == kind and trial.outcome == "not_enough"


def _gives(trial: Trial) -> str:
    if trial.kind == "layer_bf16":
        return "the layer runs in BF16"
    numbers = []
    low = [number for number in (trial.sqnr_db, trial.sqnr_low_db) if number is not None]
    if low:
        numbers.append(f"{min(low):.1f} dB")
    if trial.underflow:
        numbers.append(f"{share(trial.underflow)} underflow")
    given = f" gives {', '.join(numbers)}" if numbers else " is inside the rules"
    if trial.gemm is not None:
        rest = f", and {trial.rest} in the others" if trial.rest is not None else ", the others as they are,"
        return f"{trial.gemm} in BF16{rest}{given}"
    return f"{trial.change}{given}"


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
