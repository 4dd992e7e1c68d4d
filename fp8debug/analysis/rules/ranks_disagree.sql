-- Ranks that hold pieces or copies of one tensor, but scaled it with different factors.
/*
severity = "error"
confidence = "certain"
priority = 8
only_if = ["(select max(rank) from stored.scales) > 0", "exists (from rank_scales)"]
sentence = "{what}"
advice = """Reduce the amax over every group whose ranks exchange these bytes: with tensor and sequence parallelism that is the tensor-parallel \
group too (in Transformer Engine reduce_amax=True and the right amax group)."""
symptom = "tensor parallel runs in FP8 diverge after hundreds of steps, one rank alone does not"
why = """
When the pieces of a tensor are gathered in FP8, as sequence parallelism does before a GEMM, all of them are read with one scale_inv. That is \
only right when all ranks cast with one scale, which takes an amax that was reduced over those ranks. When it was reduced over the \
data-parallel group alone, each rank has a scale of its own: its statistics look healthy, 31.5 dB on every rank, and yet the piece of one \
rank comes back four times too small on another.

Only scales of the framework are compared, and only those of one tensor: pieces of it, or replicas. Ranks with batches of their own may have \
scales of their own. A weight of which each rank multiplies its own piece, and an activation that is cut along the contraction, may do so \
too: under recipes without a history this is told as a note.
"""
explains = ["rank_gain"]

[parameters.ratio]
default = 1.01
meaning = "scales of two ranks that differ by a larger factor are not the same"
source = "a reduced amax is the same bit for bit; a hundredth leaves room for how a framework stores its scales"

[[evidence]]
column = "ratio"
title = "largest / smallest scale over the ranks"
healthy = "1"
format = ".4g"

[[evidence]]
column = "by_rank"
title = "scale (or the amax that it comes from) by rank"
healthy = "the same on all"
format = ""

[[evidence]]
column = "gains"
title = "gain of each rank's bytes, read with the scale of the lowest"
healthy = "1"
format = ""
*/
with differing as (
    -- Amaxes that differ while the scales do not (yet) are told too, once.
    select * from rank_scales where ratio > $ratio
    qualify is_by_amax = min(is_by_amax) over (partition by layer, tensor, recipe, kind)
),
operands_of as (
    select
        layer, tensor, recipe, kind, any_value(is_by_amax) as is_by_amax, min(step) as first_step, max(step) as last_step, count(distinct step) as n_steps,
        arg_max(ratio, ratio) as ratio, min(ratio) as least_ratio, arg_max(ranks, ratio) as ranks,
        arg_max(scales, ratio) as scales, arg_max(step, ratio) as worst_step
    from differing
    group by layer, tensor, recipe, kind
),
seen as (
    select layer, tensor, recipe, count(distinct step) as n_observed_steps
    from rank_scales
    group by layer, tensor, recipe
),
told as (
    select
        o.*, n_observed_steps,
        list_transform(scales, lambda s: s / scales[1]) as factors,
        list_transform(list_zip(ranks, scales), lambda z: format('rank {}: {:.4g}', z[1], case when is_by_amax then 1 / z[2] else z[2] end)) as by_rank,
        list_transform(list_zip(ranks, scales), lambda z: format('rank {}: {:.3g}', z[1], z[2] / scales[1])) as all_gains,
        case when not is_by_amax then all_gains end as gains,
        list_max(list_transform(scales, lambda s: abs(1 - s / scales[1]))) as off
    from operands_of as o
    join seen using (layer, tensor, recipe)
)
select
    layer, tensor, recipe, first_step, last_step, n_steps, n_observed_steps, ratio, by_rank, gains,
    ranks[list_position(factors, list_max(list_transform(factors, lambda f: greatest(f, 1 / f))))] as odd,
    case when kind = 'apart' or is_by_amax then 0
        else greatest(getvariable('baseline_e4m3') + 20 * log10(greatest(off, 1e-3)), 0) end as db_lost,
    case kind
        when 'apart'
        then format(
            'ranks scale their pieces of this tensor differently (largest / smallest scale {:.3g}): right as long as '
            || 'each multiplies its own piece, wrong where the bytes are gathered', ratio
        )
        else format(
            'amax not reduced over the ranks: {} of one tensor were cast with {} that differ by a factor of {:.4g} '
            || 'at step {} ({})', case kind when 'replica' then 'replicas' else 'pieces' end,
            case when is_by_amax then 'scales from amaxes' else 'scales' end, ratio, worst_step,
            array_to_string(by_rank[1:4], ', ') || case when len(by_rank) > 4 then ', ...' else '' end
        )
    end as what,
    case when kind = 'apart' then 'note' when is_by_amax then 'warning' end as severity,
    case when kind = 'apart' then 'not_enough_evidence' when is_by_amax then 'likely' end as confidence,
    case when kind = 'apart' then 'whether these bytes are gathered before a GEMM' end as needs,
    case when kind = 'apart' then 'apart' else 'amax' end as cause
from told
