"""The smallest set of layers whose fallback to BF16 reaches a target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fp8debug.analysis.remedies.in_use import recipe_in_use
from fp8debug.analysis.remedies.noise import LayerNoise, layer_noise
from fp8debug.analysis.remedies.recorded import attach_command
from fp8debug.analysis.remedies.smallest import Share, best_within, fewest_layers
from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import suspects
from fp8debug.analysis.whatif import default_recipes
from fp8debug.errors import Fp8DebugError, UsageError
from fp8debug.recipes import Recipe, parse_recipe


@dataclass(frozen=True, slots=True)
class Fallback:
    """Layers to keep in BF16, and what that gives."""

    layers: tuple[str, ...]
    """Noisiest first."""
    sqnr_db_before: float | None
    """Of the model: FLOP-weighted over its GEMMs; None: no noise at all."""
    sqnr_db_after: float | None
    """The same without those layers; None: no noise is left."""
    flops_in_bf16: float
    """Their share of the GEMM FLOPs, 0 to 1."""
    flops_kept: float
    """Share of the GEMM FLOPs that stays in low precision."""
    reached: bool
    """Whether the target is met within the budget."""
    note: str
    """What must be known to read it."""
    recipe: str
    """What the other layers are in."""
    noise: tuple[LayerNoise, ...] = ()
    """Every layer, noisiest first."""


def fallback(
    run: Run,
    target_sqnr_db: float | None = None,
    budget: float | None = None,
    *,
    recipe: Recipe | str | None = None,
) -> Fallback:
    """The smallest set of layers that reaches a target, or the best set that a budget allows.

    The noise of a layer is the FLOP-weighted mean of its GEMMs' noise over signal, as measured in `gemms` or, where it
    was not, added up from both operands; the model's is the FLOP-weighted mean over layers. A layer in BF16 counts as
    free of noise.

    Args:
        run: an open run.
        target_sqnr_db: SQNR that the model's GEMMs shall have together.
        budget: share of the GEMM FLOPs that may leave low precision, 0 to 1. With a target too, it is a limit.
        recipe: what the layers are in; None: the recipe in use, else the one with the worst operand.

    Raises:
        UsageError: neither or a bad target or budget.
        Fp8DebugError: nothing is known of any GEMM under that recipe.
    """
    _check(target_sqnr_db, budget)
    chosen = parse_recipe(recipe) if isinstance(recipe, str) else recipe or _default_recipe(run)
    noise = layer_noise(run, chosen)
    known = [entry for entry in noise if entry.nsr is not None]
    if not known:
        raise Fp8DebugError(
            f"nothing is known of the GEMMs of {run.path} under {chosen.text}; record x, w and dy with "
            + attach_command(run, chosen.text)
        )
    shares = [Share(entry.layer, entry.flops, entry.flops * (entry.nsr or 0.0)) for entry in known]
    picked, reached, notes = _pick(shares, math.fsum(entry.flops for entry in noise), target_sqnr_db, budget)
    return _answer(chosen, noise, shares, picked, reached, [*notes, *_notes(noise)])


def _pick(
    shares: Sequence[Share], all_flops: float, target_sqnr_db: float | None, budget: float | None
) -> tuple[tuple[Share, ...], bool, list[str]]:
    if target_sqnr_db is not None:
        picked, reached = fewest_layers(shares, math.pow(10, -target_sqnr_db / 10))
        cost = math.fsum(share.flops for share in picked)
        if budget is None or cost <= budget * all_flops:
            return picked, reached, []
    assert budget is not None
    picked, is_exact = best_within(shares, budget * all_flops)
    notes = [] if is_exact else ["too many sets to compare them all: there may be a slightly better one"]
    if target_sqnr_db is None:
        return picked, True, notes
    left = math.fsum(share.noise for share in shares) - math.fsum(share.noise for share in picked)
    reached = left <= math.pow(10, -target_sqnr_db / 10) * math.fsum(share.flops for share in shares)
    if not reached:
        notes.insert(0, f"{target_sqnr_db:g} dB cannot be had for {100 * budget:g} % of the GEMM FLOPs")
    return picked, reached, notes


def _answer(
    recipe: Recipe,
    noise: Sequence[LayerNoise],
    shares: Sequence[Share],
    picked: Sequence[Share],
    reached: bool,
    notes: Sequence[str],
) -> Fallback:
    total = math.fsum(share.flops for share in shares)
    names = {share.layer for share in picked}
    out = math.fsum(share.flops for share in picked) / math.fsum(entry.flops for entry in noise)
    before = math.fsum(share.noise for share in shares) / total
    after = math.fsum(share.noise for share in shares if share.layer not in names) / total
    ordered = sorted(noise, key=lambda entry: (-(entry.flops * (entry.nsr or 0.0)), entry.layer))
    layers = tuple(share.layer for share in picked)
    return Fallback(
        layers, _db(before), _db(after), out, 1 - out, reached, "; ".join(notes), recipe.text, tuple(ordered)
    )


def _notes(noise: Sequence[LayerNoise]) -> list[str]:
    known = [entry for entry in noise if entry.nsr is not None]
    estimated = [entry for entry in known if not entry.is_measured]
    notes = []
    if estimated:
        which = "all" if len(estimated) == len(known) else f"{len(estimated)} of {len(known)}"
        notes.append(f"results of {which} layers are estimated from their operands")
    if len(known) < len(noise):
        unknown = [entry.layer for entry in noise if entry.nsr is None]
        notes.append(f"nothing is known of {len(unknown)} layers, such as {unknown[0]}: left out")
    return notes


def _default_recipe(run: Run) -> Recipe:
    in_use = recipe_in_use(run)
    if in_use is not None:
        return in_use
    worst = [suspect.worst.recipe for suspect in suspects(run)[0][:1]]
    return parse_recipe(worst[0]) if worst else default_recipes(run)[0]


def _db(nsr: float) -> float | None:
    return -10 * math.log10(nsr) if nsr > 0 else None


def _check(target_sqnr_db: float | None, budget: float | None) -> None:
    if target_sqnr_db is None and budget is None:
        raise UsageError("a smallest set needs a target: --target-sqnr 25, or --budget 5%")
    if target_sqnr_db is not None and not math.isfinite(target_sqnr_db):
        raise UsageError(f"--target-sqnr is {target_sqnr_db}; expected a number of dB, such as 25")
    if budget is not None and not 0 <= budget <= 1:
        raise UsageError(f"--budget is {budget}; expected a share of the GEMM FLOPs from 0 to 1, such as 5%")
