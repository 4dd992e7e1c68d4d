"""Which operands need a remedy: those that the candidate rule lists under the recipe in use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fp8debug.analysis.remedies.in_use import recipe_in_use
from fp8debug.analysis.remedies.measured import Count, Measured, Operand
from fp8debug.analysis.remedies.passes import gap_counts
from fp8debug.analysis.remedies.per_tensor import measure
from fp8debug.analysis.remedies.recorded import attach_command, blocks
from fp8debug.analysis.run import Run
from fp8debug.analysis.suspects import Verdict, suspects
from fp8debug.analysis.whatif import default_recipes
from fp8debug.errors import Fp8DebugError, UsageError, nearest
from fp8debug.recipes import BlockRecipe, DelayedScaling, Recipe, parse_recipe

OPERANDS = ("x", "w", "dy", "key", "value")
"""Tensors that GEMMs read; results have no recipe of their own."""

_RECORDED = "select distinct layer, tensor from tensors where sampled order by all"
_JUDGED_RECIPES = "select distinct recipe from stored.errors where source <> 'payload' and not alternate"
_JUDGED = """
select layer, tensor, count(distinct step)
from sampled_evidence
where recipe = $recipe and not alternate
group by layer, tensor
"""


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
    """simulated | framework: whose scales were recorded | replayed: none were"""
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
        Fp8DebugError: none was asked for, and nothing is known of any under the block recipe in use.
    """
    if operands is not None:
        _check(run, operands)
    in_use = recipe or recipe_in_use(run)
    found = {entry.operand: entry for entry in _judged(run, in_use)}
    if operands is None:
        if isinstance(in_use, BlockRecipe) and not found:
            raise Fp8DebugError(
                f"what {in_use.text} costs the operands was not recorded in {run.path}; record it with "
                + attach_command(run, in_use.text)
            )
        return [entry for entry in found.values() if entry.is_wrong]
    base = in_use or next((entry.recipe for entry in found.values()), default_recipes(run)[0])
    known = found if in_use is not None else {entry.operand: entry for entry in _fine(run, base)} | found
    return [known.get(operand) or Affected(*operand, base, None, False) for operand in dict.fromkeys(operands)]


def sampled_operands(run: Run) -> list[Operand]:
    """All that GEMMs read and that were sampled."""
    return [(layer, tensor) for layer, tensor in run.sql(_RECORDED).fetchall() if tensor in OPERANDS]


def _judged(run: Run, in_use: Recipe | None) -> Iterable[Affected]:
    """Operands of which something is known under the recipe in use, worst first."""
    if in_use is None:
        return _listed(run, None)
    if isinstance(in_use, BlockRecipe):
        return _in_blocks(run, in_use)
    recorded = {recipe for (recipe,) in run.sql(_JUDGED_RECIPES).fetchall()}
    if in_use.text not in recorded:
        return _evaluated(run, in_use)
    listed = _listed(run, in_use.text)
    wrong = {entry.operand for entry in listed}
    return [*listed, *(entry for entry in _fine(run, in_use) if entry.operand not in wrong)]


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


def _fine(run: Run, recipe: Recipe) -> list[Affected]:
    """Operands that were judged under the recipe, as if nothing were wrong with any."""
    rows = run.sql(_JUDGED, recipe=recipe.text).fetchall()
    return [Affected(layer, tensor, recipe, Measured(Count(0, n)), False) for layer, tensor, n in rows]


def _evaluated(run: Run, recipe: Recipe) -> list[Affected]:
    """Operands under a recipe that was not recorded."""
    operands = sampled_operands(run)
    seen = measure(run, operands, [recipe]) if operands else {}
    gaps = gap_counts(run, operands, [recipe]) if operands and isinstance(recipe, DelayedScaling) else {}
    found = []
    for operand in operands:
        measured = seen.get((recipe.text, *operand))
        if measured is not None:
            counts = (measured.sampled, gaps.get((recipe.text, *operand), Count()))
            is_wrong = any(count.fails(run.thresholds) for count in counts)
            found.append(Affected(*operand, recipe, measured, is_wrong, "replayed"))
    return sorted(found, key=_sqnr_left)


def _in_blocks(run: Run, recipe: BlockRecipe) -> list[Affected]:
    """Operands under a block recipe, as measured."""
    by_operand: dict[Operand, dict[str, Measured]] = {}
    layers = sorted({layer for layer, _ in sampled_operands(run)})
    for (_, layer, tensor, gemm), measured in blocks(run, layers, [recipe.text]).items():
        by_operand.setdefault((layer, tensor), {})[gemm] = measured
    found = []
    for operand, gemms in by_operand.items():
        failing = {gemm: measured for gemm, measured in gemms.items() if measured.sampled.fails(run.thresholds)}
        worst = min((failing or gemms).values(), key=_sqnr)
        found.append(Affected(*operand, recipe, worst, bool(failing), failing_gemms=tuple(sorted(failing))))
    return sorted(found, key=_sqnr_left)


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
