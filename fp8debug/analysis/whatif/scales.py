"""The scale that each recipe has in force at each selected record."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fp8debug.analysis.gaps import RecordingGaps
from fp8debug.analysis.merge.replay import replayed
from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif.selection import JUDGED_PASSES, Selection
from fp8debug.formats import Format
from fp8debug.recipes import DelayedScaling, Recipe, TensorRecipe
from fp8debug.replay import Moment, ScaleInForce, ScaleSimulator

_MEMBERS = """
select id, record
from group_members
join whatif_records using (segment, rank, seq)
where id is not null
"""


class ScaleRow(NamedTuple):
    """One recipe at one record."""

    record: int
    """Number in `whatif_records`."""
    recipe: str
    fmt: str
    scale: float | None
    """None where the history is incomplete."""
    n_rolls: int | None
    """Amaxes that the history has consumed; None for a recipe without one."""


def is_rounding(recipe: Recipe) -> bool:
    """Whether a scale does not say everything about this per-tensor recipe."""
    return isinstance(recipe, TensorRecipe) and not recipe.is_plain


def plain_scales(run: Run, recipes: Sequence[Recipe]) -> Iterator[ScaleRow]:
    """Scales that follow from each record's own amax."""
    plain = [recipe for recipe in recipes if isinstance(recipe, TensorRecipe) and recipe.is_plain]
    if not plain:
        return
    rows = run.sql("select record, tensor, amax from whatif_records where amax is not null").fetchall()
    for recipe in plain:
        formats = {tensor: recipe.formats_for(tensor)[0][0] for _, tensor, _ in rows}
        for record, tensor, amax in rows:
            fmt = formats[tensor]
            yield ScaleRow(record, recipe.text, fmt.name, float(recipe.scale(amax, fmt)), None)


def replayed_scales(run: Run, recipes: Sequence[Recipe], selection: Selection) -> Iterator[ScaleRow]:
    """Scales of delayed scaling: every recorded pass is replayed in order, each resume from a fresh history.

    With more than one rank a history sees the largest amax over ranks, as an amax reduction would give it.
    """
    histories = _by_history(recipe for recipe in recipes if isinstance(recipe, DelayedScaling))
    if histories:
        passes = _group_passes if run.has_groups else _rank_passes
        for records, tensor, scales in passes(run, list(histories), selection):
            in_force = {s.recipe: s for s in scales}
            for history, sharing in histories.items():
                for recipe, record in itertools.product(sharing, records):
                    yield _scale_row(record, recipe, recipe.formats_for(tensor)[0][0], in_force[history.text])


_Pass = tuple[Sequence[int], str, list[ScaleInForce]]
"""Records in `whatif_records`, their tensor, and the scales in force for them."""


def _group_passes(run: Run, recipes: Sequence[DelayedScaling], selection: Selection) -> Iterator[_Pass]:
    con = run.prepare("group_passes group_members is_judged_pass")
    records: dict[int, list[int]] = {}
    for number, record in con.execute(_MEMBERS).fetchall():
        records.setdefault(number, []).append(record)
    condition = f"{JUDGED_PASSES} and {selection.operands}"
    for number, tensor, scales in replayed(con, recipes, run.manifest, condition=condition, wanted=records):
        yield records[number], tensor, scales


def _rank_passes(run: Run, recipes: Sequence[DelayedScaling], selection: Selection) -> Iterator[_Pass]:
    rolls = str(run.manifest.options.get("rolls", "microbatch"))
    gaps = RecordingGaps(run.manifest)
    simulators: dict[tuple[int, int], ScaleSimulator] = {}
    rows = run.sql(_passes(selection)).iter_rows()
    for segment, rank, step, microbatch, call, pass_, layer, tensor, amax, record in rows:
        simulator = simulators.get((segment, rank))
        if simulator is None:
            simulator = simulators[segment, rank] = ScaleSimulator(recipes, rolls)
        moment = Moment(step, microbatch, call, pass_)
        if gaps and gaps.ended_by(segment, rank, step, layer, tensor):
            simulator.see(layer, tensor, moment, None)
        if record is None:
            simulator.see(layer, tensor, moment, amax)
        else:
            yield (record,), tensor, simulator.observe(layer, tensor, moment, amax)


def _by_history(recipes: Iterable[DelayedScaling]) -> dict[DelayedScaling, list[DelayedScaling]]:
    """Recipes by what decides their amax: margins and formats share a history, so that sweeping them costs nothing."""
    histories: dict[DelayedScaling, list[DelayedScaling]] = {}
    for recipe in recipes:
        histories.setdefault(replace(recipe, margin=0, fp8_format="HYBRID"), []).append(recipe)
    return histories


def _scale_row(record: int, recipe: DelayedScaling, fmt: Format, history: ScaleInForce) -> ScaleRow:
    if history.scale is None:
        return ScaleRow(record, recipe.text, fmt.name, None, history.n_rolls)
    state = recipe.new_state([fmt])
    if history.amax_used is not None:
        state.observe(history.amax_used)
        state.roll(0)
    return ScaleRow(record, recipe.text, fmt.name, float(state.scale(fmt)), history.n_rolls)


def _passes(selection: Selection) -> str:
    return f"""
        select
            segment, rank, step, microbatch, call, pass, layer, tensor,
            kernel_amax(case when t.n = 0 then 0 else t.amax end, t.n_posinf, t.n_neginf) as amax, r.record
        from tensors as t
        left join (select record, segment, rank, seq from whatif_records) as r using (segment, rank, seq)
        where status in ('ok', 'empty', 'no_tokens', 'empty_shard') and {JUDGED_PASSES} and {selection.operands}
        order by segment, rank, seq
    """
