"""Operands under recipes with one scale a tensor: exact from the histograms, judged by the candidate rule."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fp8debug.analysis.parts import quote_text
from fp8debug.analysis.remedies.measured import Measured, Operand
from fp8debug.analysis.run import Run
from fp8debug.analysis.whatif.scales import ScaleRow, plain_scales, replayed_scales
from fp8debug.analysis.whatif.selection import Selection, create_records, select
from fp8debug.analysis.whatif.sums import create_sums
from fp8debug.recipes import DelayedScaling, Recipe


@dataclass(frozen=True, slots=True)
class Shifted:
    """What a margin or another format makes of the scales that were recorded."""

    recipe: DelayedScaling
    """What is tried."""
    base: DelayedScaling
    """Whose scales were recorded."""

    def factor(self, tensor: str) -> float:
        """Factor from a recorded scale to the one that is tried."""
        return _largest(self.recipe, tensor) / _largest(self.base, tensor)


def _largest(recipe: DelayedScaling, tensor: str) -> float:
    """What the scale brings the amax to."""
    return math.ldexp(float(recipe.formats_for(tensor)[0][0].max), -recipe.margin)


# Histograms do not know channels: of an operand whose median channel is lost now, a change that leaves as many zeros
# loses it too.
_JUDGED = """
with lost as (
    select layer, tensor, min(channel_db) as channel_db
    from sampled_evidence
    where is_sqnr_hit(channel_db, fmt)
    group by layer, tensor
),
ratios as (
    select
        r.layer, r.tensor, r.step, s.recipe, s.fmt,
        sqnr_db(sum_x2, sum_err2) as sqnr_db, sqnr_db(low_sum_x2, low_sum_err2) as sqnr_low_db,
        ratio(n_underflow, n_nonzero) as underflow, ratio(n_overflow, n) as overflow, gain(sum_xq, sum_x2) as gain,
        gap_bits(s.scale, r.amax, s.fmt) as bits,
        is_sqnr_hit(sqnr_db, s.fmt) as hit_sqnr, is_gain_hit(gain, s.fmt) as hit_gain,
        is_gap_hit(bits) as hit_gap, is_underflow_hit(underflow, sqnr_low_db, channel_db, s.fmt) as hit_underflow,
        hit_sqnr or hit_gain or hit_gap or hit_underflow as is_hit
    from whatif_sums as s
    join whatif_records as r using (record)
    left join lost using (layer, tensor)
    where n_nonzero >= getvariable('min_nonzero') and per_fmt(s.fmt, 1, 1) is not null
      and coalesce(n_rolls >= getvariable('warmup_rolls'), true)
),
marked as (
    select *, bool_or(is_hit) over (partition by recipe, layer, tensor) as is_any_hit from ratios
)
select
    recipe, layer, tensor, count(distinct step) filter (is_hit), count(distinct step),
    median(sqnr_db) filter (is_hit = is_any_hit), median(sqnr_low_db) filter (is_hit = is_any_hit),
    median(underflow) filter (is_hit = is_any_hit), median(overflow) filter (is_hit = is_any_hit),
    median(bits) filter (is_hit = is_any_hit), median(gain) filter (is_hit = is_any_hit),
    criteria_list(bool_or(hit_gap), bool_or(hit_underflow), false, bool_or(hit_gain), bool_or(hit_sqnr))
from marked
group by recipe, layer, tensor
"""
_BLIND = """
select layer, tensor
from (
    select
        *, (segment, rank, seq) in (
            select (segment, rank, seq) from whatif_records semi join whatif_sums using (record)
        ) as is_counted
    from sampled_evidence
    where recipe = $recipe and not alternate
)
where is_sqnr_hit(sqnr_db, fmt) or is_gain_hit(gain, fmt) or is_gap_hit(scale_gap_bits)
   or is_underflow_hit(underflow, sqnr_low_db, channel_db, fmt)
group by layer, tensor
having not bool_or(is_counted)
"""
_MERGED = """
select layer, tensor, greatest(ratio(sum(sum_err2), sum(sum_x2)), ratio(sum(low_sum_err2), sum(low_sum_x2)))
from whatif_sums
join whatif_records using (record)
where isfinite(sum_err2) and coalesce(n_rolls >= getvariable('warmup_rolls'), true)
group by layer, tensor
"""
_RECORDED_SCALES = """
select r.record, r.tensor, s.scale
from judged_scales as s
join whatif_records as r using (segment, rank, seq)
where s.recipe = $recipe and not s.alternate and s.scale > 0 and s.status = 'ok'
  and not (s.source = 'simulated' and s.n_rolls < getvariable('warmup_rolls'))
"""


def measure(
    run: Run, operands: Sequence[Operand], recipes: Sequence[Recipe], shifted: Sequence[Shifted] = ()
) -> dict[tuple[str, str, str], Measured]:
    """Every operand under every recipe: (recipe, layer, tensor) -> what the rule sees; what was not sampled is absent.

    Args:
        run: an open run.
        operands: which.
        recipes: per-tensor recipes; histories are replayed.
        shifted: those that follow from recorded scales instead.
    """
    _create_sums(run, operands, recipes, shifted)
    return {
        (recipe, layer, tensor): Measured.of(cells) for recipe, layer, tensor, *cells in run.sql(_JUDGED).fetchall()
    }


def blind_operands(run: Run, recipe: str) -> set[Operand]:
    """Of the last measurement, operands that hit under a recorded recipe, and only where no histogram was kept."""
    return {(layer, tensor) for layer, tensor in run.sql(_BLIND, recipe=recipe).fetchall()}


def noise_over_signal(run: Run, operands: Sequence[Operand], recipe: Recipe) -> dict[Operand, float]:
    """Noise over signal of each operand under one recipe, of its smallest 99 % where that is more.

    The sums of its records are merged; the start of a history is left out.
    """
    if not operands:
        return {}
    _create_sums(run, operands, [recipe])
    return {(layer, tensor): nsr for layer, tensor, nsr in run.sql(_MERGED).fetchall() if nsr is not None}


def _create_sums(
    run: Run, operands: Sequence[Operand], recipes: Sequence[Recipe], shifted: Sequence[Shifted] = ()
) -> None:
    selection = _selection(run, operands)
    n_records = create_records(run, selection)
    scales = itertools.chain(
        plain_scales(run, recipes), replayed_scales(run, recipes, selection), _shifted_scales(run, shifted)
    )
    create_sums(run, recipes, scales, n_records)


def _selection(run: Run, operands: Sequence[Operand]) -> Selection:
    """Exactly these operands."""
    layers = sorted({layer for layer, _ in operands})
    pattern = f"^(?:{'|'.join(map(re.escape, layers))})$"
    chosen = select(run, pattern, sorted({tensor for _, tensor in operands}), None)
    pairs = ", ".join(f"({quote_text(layer)}, {quote_text(tensor)})" for layer, tensor in operands)
    return replace(chosen, operands=f"(layer, tensor) in ({pairs})")


def _shifted_scales(run: Run, shifted: Sequence[Shifted]) -> Iterator[ScaleRow]:
    recorded: dict[str, list[tuple[int, str, float]]] = {}
    for trial in shifted:
        base = trial.base.text
        if base not in recorded:
            recorded[base] = run.sql(_RECORDED_SCALES, recipe=base).fetchall()
        for record, tensor, scale in recorded[base]:
            fmt = trial.recipe.formats_for(tensor)[0][0]
            yield ScaleRow(record, trial.recipe.text, fmt.name, scale * trial.factor(tensor), None)
