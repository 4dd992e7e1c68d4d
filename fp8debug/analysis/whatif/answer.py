"""The what-if as a record: recipes side by side, per tensor or per layer, and what must be known to read it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fp8debug.analysis.displayed import Displayed
from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif.errors import GemmErrors, OperandErrors, block_errors, gemm_errors, histogram_errors
from fp8debug.analysis.whatif.notes import Gaps, Note, notes, nothing_known
from fp8debug.analysis.whatif.scales import plain_scales, replayed_scales
from fp8debug.analysis.whatif.selection import Selection, StepRanges, create_records, select
from fp8debug.analysis.whatif.starts import KEPT, leave_out_starts
from fp8debug.analysis.whatif.sums import SUMS, create_sums
from fp8debug.config import DEFAULT_RECIPES
from fp8debug.errors import Fp8DebugError
from fp8debug.recipes import BlockRecipe, Recipe, parse_recipe

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class WhatIf(Displayed):
    """Recipes side by side. Sums are merged, ratios computed last: no number is an average of ratios."""

    recipes: tuple[str, ...]
    """Canonical texts, in the order asked for."""
    tensors: tuple[str, ...]
    n_histograms: int
    """Records whose values were counted."""
    steps: tuple[int, ...]
    """Sampled steps looked at."""
    layers: tuple[str, ...]
    """Worst first, by the largest db_lost of their operands under any of the recipes; by name without per_layer."""
    operands: tuple[OperandErrors, ...]
    gemms: tuple[GemmErrors, ...]
    notes: tuple[Note, ...]


def whatif(
    run: Run,
    recipes: Sequence[Recipe | str],
    *,
    layer: str | None = None,
    tensors: Sequence[str] | None = None,
    steps: StepRanges | None = None,
    per_layer: bool = True,
) -> WhatIf:
    """What recipes do to the tensors of a run.

    All figures are of the same records, so the start of a replayed history is left out for every recipe.

    Per-tensor recipes are worked out from the histograms, whatever was recorded under; for block recipes and for the
    results of GEMMs there is what was recorded, and a note where it was not. Histories are replayed over all recorded
    steps: give `steps` here, not to `open_run`.

    Args:
        run: an open run.
        recipes: recipes or their texts.
        layer: regex for re.search on the layer's name; None: all.
        tensors: of x, w, dy, y, dx, dw; None: all that were recorded.
        steps: ranges (first, last), both included; last None: to the end.
        per_layer: one entry a layer; if not, sums over layers.

    Raises:
        UsageError: an unknown recipe, or something asked for that the run does not have.
        Fp8DebugError: there is nothing to answer from.
    """
    if run.notice is not None:
        raise Fp8DebugError(f"{run.notice}; record a run with `fp8debug attach train.py`")
    wanted = _distinct(recipes)
    selection = select(run, layer, tensors, steps)
    n_incomplete = _create_tables(run, wanted, selection)
    gaps = Gaps(leave_out_starts(run), n_incomplete)
    recorded = [recipe.text for recipe in wanted if isinstance(recipe, BlockRecipe)]
    operands = histogram_errors(run, per_layer=per_layer)
    operands += block_errors(run, recorded, selection, per_layer=per_layer)
    mature = [recipe.text for recipe in wanted if recipe.text not in gaps.starts.recipes]
    gemms = gemm_errors(run, mature, selection, per_layer=per_layer)
    if not operands and not gemms:
        raise nothing_known(run, wanted, selection, gaps)
    place = {recipe.text: number for number, recipe in enumerate(wanted)}
    operands.sort(key=lambda e: (e.layer or "", place[e.recipe], selection.tensors.index(e.tensor), e.gemm or ""))
    gemms.sort(key=lambda e: (e.layer or "", place[e.recipe], e.gemm, e.accumulation))
    n_histograms, found_steps, layers = run.sql(_FOUND).fetchall()[0]
    return WhatIf(
        recipes=tuple(place),
        tensors=selection.tensors,
        n_histograms=n_histograms,
        steps=tuple(found_steps or ()),
        layers=_worst_first(layers or (), operands),
        operands=tuple(operands),
        gemms=tuple(gemms),
        notes=tuple(notes(run, wanted, selection, operands, gemms, gaps)),
    )


_FOUND = f"""
select count(distinct record), list_sort(list(distinct step)), list_sort(list(distinct layer))
from whatif_records
semi join whatif_sums using (record)
where {KEPT}
"""


def _worst_first(layers: Sequence[str], operands: Sequence[OperandErrors]) -> tuple[str, ...]:
    lost: dict[str, float] = {}
    for entry in operands:
        if entry.layer is not None:
            lost[entry.layer] = max(lost.get(entry.layer, 0.0), round(entry.db_lost or 0.0, 2))
    return tuple(sorted({*layers, *lost}, key=lambda layer: (-lost.get(layer, 0.0), layer)))


def record_sums(
    run: Run,
    recipes: Sequence[Recipe | str],
    *,
    layer: str | None = None,
    tensors: Sequence[str] | None = None,
    steps: StepRanges | None = None,
) -> duckdb.DuckDBPyRelation:
    """The same for per-tensor recipes, one row a record and recipe: the columns of `errors` that say something here.

    The start of simulated histories is in it. Arguments and errors as in `whatif`; the relation lasts until the next
    call on the same run.
    """
    _create_tables(run, _distinct(recipes), select(run, layer, tensors, steps))
    return run.sql(
        f"""
        select
            segment, step, microbatch, call, pass, rank, layer, tensor, seq, recipe, fmt, scale, n_rolls,
            {", ".join(SUMS)}, approx
        from whatif_sums
        join whatif_records using (record)
        order by record, recipe
        """
    )


def default_recipes(run: Run) -> tuple[Recipe, ...]:
    """What to compare when nobody says: the recipes that were recorded, and current and delayed scaling."""
    return _distinct([*run.manifest.recipes, *DEFAULT_RECIPES])


def _distinct(recipes: Sequence[Recipe | str]) -> tuple[Recipe, ...]:
    parsed = [parse_recipe(recipe) if isinstance(recipe, str) else recipe for recipe in recipes]
    return tuple({recipe.text: recipe for recipe in parsed}.values())


def _create_tables(run: Run, recipes: Sequence[Recipe], selection: Selection) -> dict[str, int]:
    """Make the temporary tables of a what-if; by recipe, how many records have a history with a gap."""
    n_records = create_records(run, selection)
    scales = itertools.chain(plain_scales(run, recipes), replayed_scales(run, recipes, selection))
    return create_sums(run, recipes, scales, n_records)
