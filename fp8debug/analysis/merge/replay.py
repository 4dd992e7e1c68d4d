"""Delayed scaling of reduction groups: histories that see the largest amax over ranks."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import duckdb

from fp8debug.analysis.gaps import RecordingGaps
from fp8debug.recipes import DelayedScaling, parse_recipe
from fp8debug.replay import Moment, ScaleInForce, ScaleSimulator
from fp8debug.rundir import Manifest

# A tensor's own passes are in order within a micro-batch; sequence numbers of different ranks are not.
_PASSES = """
select id, segment, step, microbatch, call, pass, layer, tensor, amax
from group_passes
where {condition}
order by segment, layer, tensor, step, microbatch, first_seq
"""
_RECORDED = """
select distinct recipe
from stored.scales
where source = 'simulated' and recipe is not null
order by recipe
"""
_COLUMNS = {
    "id": "int64", "recipe": "string", "fmt": "string", "alternate": "bool_", "scale": "float32",
    "amax_used": "float32", "history_len": "int32", "history_zeros": "int32", "n_rolls": "int64",
    "set_at_step": "int64", "status": "string",
}  # fmt: skip
"""Of the table `group_replay`, with their types in Arrow."""
_GROUP = -1  # in the place of a rank


def replayed(
    con: duckdb.DuckDBPyConnection,
    recipes: Sequence[DelayedScaling],
    manifest: Manifest,
    *,
    condition: str = "true",
    wanted: Container[int] | None = None,
) -> Iterator[tuple[int, str, list[ScaleInForce]]]:
    """(id in `group_passes`, tensor, scales in force), each pass of a tensor in order; a resume begins a new history.

    Args:
        con: with the table `group_passes`.
        recipes: what is replayed.
        manifest: of the run: when a history advances, and where recording paused.
        condition: SQL condition on the columns of `group_passes`.
        wanted: ids that are asked for; None: all.
    """
    rolls, gaps = str(manifest.options.get("rolls", "microbatch")), RecordingGaps(manifest)
    simulators: dict[int, ScaleSimulator] = {}
    for number, segment, step, microbatch, call, pass_, layer, tensor, amax in con.sql(
        _PASSES.format(condition=condition)
    ).iter_rows():
        simulator = simulators.get(segment)
        if simulator is None:
            simulator = simulators[segment] = ScaleSimulator(recipes, rolls)
        moment = Moment(step, microbatch, call, pass_)
        if gaps and gaps.ended_by(segment, _GROUP, step, layer, tensor):
            simulator.see(layer, tensor, moment, None)
        if wanted is None or number in wanted:
            yield number, tensor, simulator.observe(layer, tensor, moment, amax)
        else:
            simulator.see(layer, tensor, moment, amax)


def fill_group_replay(con: duckdb.DuckDBPyConnection, manifest: Manifest) -> None:
    """Put the scales of the run's own simulated recipes into the table `group_replay`."""
    texts = [text for (text,) in con.execute(_RECORDED).fetchall()]
    recipes = [recipe for recipe in map(parse_recipe, texts) if isinstance(recipe, DelayedScaling)]
    if not recipes:
        return
    rows = [
        (number, s.recipe, s.fmt.name, s.alternate, None if s.scale is None else float(s.scale), s.amax_used,
         s.history_len, s.history_zeros, s.n_rolls, s.set_at_step, s.status)
        for number, _, scales in replayed(con, recipes, manifest)
        for s in scales
    ]  # fmt: skip
    if rows:
        _insert(con, rows)


def _insert(con: duckdb.DuckDBPyConnection, rows: Sequence[tuple[object, ...]]) -> None:
    import pyarrow as pa

    arrays = [
        pa.array(column, getattr(pa, kind)())
        for column, kind in zip(zip(*rows, strict=True), _COLUMNS.values(), strict=True)
    ]
    con.register("replayed_scales", pa.table(arrays, names=list(_COLUMNS)))
    con.execute("insert into group_replay from replayed_scales")
    con.unregister("replayed_scales")
