"""Which operands need a remedy: those that the candidate rule lists under the recipe in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fp8debug.analysis.remedies.in_use import recipe_in_use
from fp8debug.analysis.remedies.measured import Count, Measured, Operand
from fp8debug.analysis.remedies.passes import gap_counts
from fp8debug.analysis.remedies.per_tensor import measure
from fp8debug.analysis.remedies.recorded import blocks
from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import Verdict, suspects
from fp8debug.analysis.whatif import default_recipes
from fp8debug.errors import UsageError, nearest
from fp8debug.recipes import BlockRecipe, DelayedScaling, Recipe, parse_recipe

OPERANDS = ("x", "w", "dy", "key", "value")
"""Tensors that GEMMs read; results have no recipe of their own."""

_RECORDED = "select distinct layer, tensor from tensors where sampled order by all"
_JUDGED = "select distinct recipe from errors where source <> 'payload' and not alternate"


@dataclass(frozen=True, slots=True)
class Affected:
    """An operand and how it is now."""

    layer: str
    tensor: str
    recipe: Recipe
    """What it is in now."""
    measured: Measured | None
    """None: nothing is known of it under that recipe."""
    is_wrong: bool
    source: str = "simulated"
    """simulated | framework: whose scales these are"""
    failing_gemms: tuple[str, ...] = ()
    """Under a block recipe, the GEMMs that read it badly."""

    @property
    def operand(self) -> Operand:
        """Its key."""
        return self.layer, self.tensor


def affected(run: Run, operands: Sequence[Operand] | None, recipe: Recipe | None) -> list[Affected]:
    """The operands asked for, or all that are wrong, worst first.

    Raises:
        UsageError: an operand that was not recorded.
    """
    if operands is not None:
        _check(run, operands)
    in_use = recipe or recipe_in_use(run)
    found = {entry.operand: entry for entry in _wrong(run, in_use)}
    if operands is None:
        return list(found.values())
    base = in_use or next((entry.recipe for entry in found.values()), default_recipes(run)[0])
    return [found.get(operand) or Affected(*operand, base, None, False) for operand in dict.fromkeys(operands)]


def sampled_operands(run: Run) -> list[Operand]:
    """All that GEMMs read and that were sampled."""
    return [(layer, tensor) for layer, tensor in run.sql(_RECORDED).fetchall() if tensor in OPERANDS]


def _wrong(run: Run, in_use: Recipe | None) -> Iterable[Affected]:
    if in_use is None:
        return _listed(run, None)
    if isinstance(in_use, BlockRecipe):
        return _in_blocks(run, in_use)
    judged = {recipe for (recipe,) in run.sql(_JUDGED).fetchall()}
    return _listed(run, in_use.text) if in_use.text in judged else _evaluated(run, in_use)


def _listed(run: Run, in_use: str | None) -> list[Affected]:
    """Candidates under the recipe in use; where none is in use, under the one that each is worst under."""
    found = []
    for suspect in suspects(run)[0]:
        verdicts = [v for v in suspect.verdicts if v.level == "candidate" and in_use in (None, v.recipe)]
        if verdicts and suspect.tensor in OPERANDS:
            found.append(_of_verdict(suspect.layer, suspect.tensor, verdicts[0]))
    return found


def _of_verdict(layer: str, tensor: str, verdict: Verdict) -> Affected:
    measured = Measured(
        Count(verdict.n_hit_steps, verdict.n_observed_steps), verdict.sqnr_db, verdict.sqnr_low_db, verdict.underflow,
        verdict.overflow, verdict.scale_gap_bits, verdict.gain, verdict.criteria,
    )  # fmt: skip
    return Affected(layer, tensor, parse_recipe(verdict.recipe), measured, True, verdict.source)


def _evaluated(run: Run, recipe: Recipe) -> list[Affected]:
    """Wrong operands under a recipe that was not recorded."""
    operands = sampled_operands(run)
    seen = measure(run, operands, [recipe]) if operands else {}
    gaps = gap_counts(run, operands, [recipe]) if operands and isinstance(recipe, DelayedScaling) else {}
    wrong = [
        Affected(*operand, recipe, measured, True)
        for operand in operands
        if (measured := seen.get((recipe.text, *operand))) is not None
        and (measured.sampled.fails(run.thresholds) or gaps.get((recipe.text, *operand), Count()).fails(run.thresholds))
    ]
    return sorted(wrong, key=_sqnr_left)


def _in_blocks(run: Run, recipe: BlockRecipe) -> list[Affected]:
    """Wrong operands under a block recipe, as measured."""
    layers = sorted({layer for layer, _ in sampled_operands(run)})
    failing: dict[Operand, dict[str, Measured]] = {}
    for (_, layer, tensor, gemm), measured in blocks(run, layers, [recipe.text]).items():
        if measured.sampled.fails(run.thresholds):
            failing.setdefault((layer, tensor), {})[gemm] = measured
    wrong = [
        Affected(*operand, recipe, min(gemms.values(), key=_sqnr), True, failing_gemms=tuple(sorted(gemms)))
        for operand, gemms in failing.items()
    ]
    return sorted(wrong, key=_sqnr_left)


def _sqnr_left(entry: Affected) -> float:
    return _sqnr(entry.measured) if entry.measured is not None else 0.0


def _sqnr(measured: Measured) -> float:
    known = [number for number in (measured.sqnr_db, measured.sqnr_low_db) if number is not None]
    return min(known, default=0.0)


def _check(run: Run, operands: Sequence[Operand]) -> None:
    recorded = sampled_operands(run)
    for operand in operands:
        if tuple(operand) not in recorded:
            names = [" ".join(known) for known in recorded]
            near = nearest(" ".join(operand), names) or names[:3]
            raise UsageError(
                f"operand {' '.join(operand)} was not sampled in this run; "
                + (f"nearest: {', '.join(near)}" if near else "none was")
            )
