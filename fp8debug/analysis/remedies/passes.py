"""The scale gap at every pass, unsampled ones too: a history that is fine where it was sampled may clip between."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from fp8debug.analysis.gaps import RecordingGaps
from fp8debug.analysis.merge.replay import replayed
from fp8debug.analysis.parts import quote_text
from fp8debug.analysis.remedies.measured import Count, Operand
from fp8debug.analysis.remedies.per_tensor import Shifted
from fp8debug.analysis.run import Run
from fp8debug.formats import Format
from fp8debug.recipes import CurrentScaling, DelayedScaling
from fp8debug.replay import Moment, ScaleInForce, ScaleSimulator

_PASSES = """
select
    segment, rank, step, microbatch, call, pass, layer, tensor,
    kernel_amax(case when n = 0 then 0 else amax end, n_posinf, n_neginf) as seen_amax,
    coalesce(n - n_zero - n_nan - n_posinf - n_neginf, n) as n_nonzero
from tensors
where status in ('ok', 'empty', 'no_tokens', 'empty_shard') and is_judged_pass(pass) and {operands}
order by segment, rank, seq
"""
_GROUPS = "select id, layer, step, amax, n_nonzero from group_passes where {operands}"
_RECORDED = """
select
    bits, layer, tensor, count(distinct step) filter (is_gap_hit(scale_gap_bits - bits)), count(distinct step)
from scale_gaps, (select unnest($bits::int[]) as bits)
where recipe = $recipe and not alternate and scale_gap_bits is not null and is_judged_pass(pass)
  and n_nonzero >= getvariable('min_nonzero')
  and not (source = 'simulated' and n_rolls < getvariable('warmup_rolls')) and {operands}
group by bits, layer, tensor
"""


def gap_counts(
    run: Run, operands: Sequence[Operand], recipes: Sequence[DelayedScaling], shifted: Sequence[Shifted] = ()
) -> dict[tuple[str, str, str], Count]:
    """(recipe, layer, tensor) -> in how many steps of all the scale would be too large.

    Args:
        run: an open run.
        operands: which.
        recipes: replayed over all recorded passes.
        shifted: these follow from the recorded scales instead; another format has the same gap.
    """
    counts: dict[tuple[str, str, str], Count] = {}
    chosen = _condition(operands)
    by_base: dict[str, dict[str, int]] = defaultdict(dict)
    for trial in shifted:
        by_base[trial.base.text][trial.recipe.text] = trial.recipe.margin - trial.base.margin
    for base, shifts in by_base.items():
        bits = sorted(set(shifts.values()))
        for shift, layer, tensor, *numbers in run.sql(
            _RECORDED.format(operands=chosen), recipe=base, bits=bits
        ).fetchall():
            for recipe in (text for text, its in shifts.items() if its == shift):
                counts[recipe, layer, tensor] = Count(*numbers)
    if recipes:
        counts.update(_replayed_counts(run, operands, recipes))
    return counts


def _condition(operands: Sequence[Operand]) -> str:
    """That a record is of one of these, in SQL."""
    pairs = ", ".join(f"({quote_text(layer)}, {quote_text(tensor)})" for layer, tensor in operands)
    return f"(layer, tensor) in ({pairs})"


def _replayed_counts(
    run: Run, operands: Sequence[Operand], recipes: Sequence[DelayedScaling]
) -> dict[tuple[str, str, str], Count]:
    limit, young = run.thresholds["gap_bits"], run.thresholds["warmup_rolls"]
    hits: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    steps: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    walk = _group_passes if run.has_groups else _rank_passes
    for layer, tensor, step, amax, n_nonzero, scales in walk(run, recipes, _condition(operands)):
        if n_nonzero is None or n_nonzero < run.thresholds["min_nonzero"] or not amax or not math.isfinite(amax):
            continue
        for s in scales:
            if not s.alternate and s.scale is not None and (s.n_rolls or 0) >= young:
                steps[s.recipe, layer, tensor].add(step)
                if _bits(float(s.scale), amax, s.fmt) > limit:
                    hits[s.recipe, layer, tensor].add(step)
    return {key: Count(len(hits[key]), len(seen)) for key, seen in steps.items()}


def _bits(scale: float, amax: float, fmt: Format) -> float:
    return math.log2(scale / float(CurrentScaling().scale(amax, fmt)))


_Pass = tuple[str, str, int, float | None, int | None, list[ScaleInForce]]
"""Layer, tensor, step, amax, non-zero elements, scales in force."""


def _rank_passes(run: Run, recipes: Sequence[DelayedScaling], operands: str) -> Iterator[_Pass]:
    rolls, gaps = str(run.manifest.options.get("rolls", "microbatch")), RecordingGaps(run.manifest)
    simulators: dict[tuple[int, int], ScaleSimulator] = {}
    rows = run.sql(_PASSES.format(operands=operands)).iter_rows()
    for segment, rank, step, microbatch, call, pass_, layer, tensor, amax, n_nonzero in rows:
        simulator = simulators.setdefault((segment, rank), ScaleSimulator(recipes, rolls))
        moment = Moment(step, microbatch, call, pass_)
        if gaps and gaps.ended_by(segment, rank, step, layer, tensor):
            simulator.see(layer, tensor, moment, None)
        yield layer, tensor, step, amax, n_nonzero, simulator.observe(layer, tensor, moment, amax)


def _group_passes(run: Run, recipes: Sequence[DelayedScaling], operands: str) -> Iterator[_Pass]:
    con = run.prepare("group_passes group_members is_judged_pass")
    found = {row[0]: row[1:] for row in con.execute(_GROUPS.format(operands=operands)).fetchall()}
    for number, tensor, scales in replayed(
        con, recipes, run.manifest, condition=f"is_judged_pass(pass) and {operands}"
    ):
        layer, step, amax, n_nonzero = found[number]
        yield layer, tensor, step, amax, n_nonzero, scales
