-- What the GEMM read comes back by another factor than its own scale would give, with what would explain that.
/*
severity = "error"
confidence = "certain"
priority = 6
only_if = ["exists (from stored.tensors where contains(dtype, '_'))", "exists (from checked_payloads where differs)"]
sentence = "what the GEMM reads is {gain:.3g} times the tensor{why_so}"
advice = "Compare how the codes were made with how they are read: format, scale or its inverse, and whose scale it is; `fp8debug sql` shows both in the view payload_checks."
symptom = "the loss is offset from the start, or a layer's output is twice, half or 448/240 times what it should be"
why = """
The codes that a GEMM reads, times the factor that it multiplies them with, should be the tensor again. When they are not, it is nearly \
always by one factor, and the factor tells the mistake: 2 or 1/2 is E4M3FN against E4M3FNUZ, 448/240 or 448/57344 a scale made for another \
format, the scale itself or its square one that was applied twice, not at all or inverted, anything else often the scale of another operand, \
of an earlier step, or one that was rounded to a power of two after the cast.

Every pair of formats and every scale at hand is tried. From the recorded sums it is known exactly what error would be left without the \
factor: the explanation that leaves least is told, with the decibels that it explains. Where no factor explains anything, a part \
of the tensor was read with another one, or the codes are of something else; that is a note where it costs next to nothing.
"""
explains = [
    "weights_lag", "rank_gain", "clipping", "clipping_spike", "underflow", "gain_off", "sqnr_low",
    "gemm_error", "block_gain", "stale_scale", "frozen_scale",
]

[parameters.least_db]
default = 0.5
unit = "dB"
meaning = "a factor that explains less of the error than this is no explanation"
source = "no mistake in a scale costs less: the gain is off by more than a tenth wherever the rule looks"

[parameters.near_db]
default = 1.0
unit = "dB"
meaning = "an explanation that leaves this much more error than the best factor does not explain it"
source = "a factor that is 1.3 % off leaves 1 dB more than E4M3's own rounding"

[parameters.lost_db]
default = 3.0
unit = "dB"
meaning = "what no factor explains is told as a note where it costs less than this"
source = "half the signal"

[parameters.right_db]
default = 10
unit = "dB"
meaning = "an explanation must leave at least this SQNR"
source = "below it, codes and tensor have little in common, whatever the factor"

[[evidence]]
column = "gain"
title = "gain of what the GEMM read"
healthy = "{own_gain:.3f}"
format = ".4g"

[[evidence]]
column = "sqnr_db"
title = "SQNR of what the GEMM read, dB"
healthy = "{own_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "explained_sqnr_db"
title = "SQNR without that factor, dB"
healthy = "{own_sqnr_db:.1f}"
format = ".1f"
*/
with best as (
    select * from explanations where kind = 'best'
),
told as (
    select e.*, b.explained_sqnr_db as best_sqnr_db
    from explanations as e
    join best as b using (layer, tensor, rank, recipe, fmt)
    where e.kind <> 'best' and 2 * e.n_records >= b.n_records and e.explained_sqnr_db >= b.explained_sqnr_db - $near_db
      and e.explained_sqnr_db - e.sqnr_db >= $least_db and e.explained_sqnr_db >= $right_db
    qualify row_number() over (
        partition by e.layer, e.tensor, e.rank, e.recipe, e.fmt
        order by round(e.explained_sqnr_db / 0.3) desc, e.rank_order, e.explained_sqnr_db desc, e.kind
    ) = 1
),
odd as (
    select
        layer, tensor, recipe, fmt, rank, min(step) filter (differs) as first_step,
        max(step) filter (differs) as last_step, count(distinct step) filter (differs) as n_steps,
        count(distinct step) as n_observed_steps, median(gain) filter (differs) as gain,
        median(sqnr_db) filter (differs) as sqnr_db,
        coalesce(median(own_gain) filter (differs), 1) as own_gain,
        coalesce(median(own_sqnr_db) filter (differs), baseline_db(fmt)) as own_sqnr_db
    from checked_payloads
    where gain is not null
    group by layer, tensor, recipe, fmt, rank
    having count(*) filter (differs) > 0
)
select
    o.*, greatest(o.own_sqnr_db - o.sqnr_db, 0) as db_lost, b.explained_sqnr_db,
    case
        when coalesce(t.explained_sqnr_db, b.explained_sqnr_db) - b.sqnr_db < $least_db
             and o.own_sqnr_db - o.sqnr_db < $lost_db
        then 'note'
    end as severity,
    case
        when t.kind is not null
        then format(
            ': {}, which explains {:.1f} dB of the error', t.explanation, t.explained_sqnr_db - t.sqnr_db
        )
        when o.gain = 0 and b.explained_sqnr_db is null then ': the codes are all zero'
        when b.explained_sqnr_db is null or b.explained_sqnr_db - b.sqnr_db < $least_db
        then ', and no single factor explains that: a part of it is read with another scale, or the codes are of '
            || 'something else'
        when b.explained_sqnr_db < o.own_sqnr_db - 6
        then format(
            '; no scale and no format that is known explains it, and at the best factor {:.1f} dB are left: the codes '
            || 'are no multiple of the tensor (they were clipped, or are of another tensor or an old one)',
            b.explained_sqnr_db
        )
        else '; no scale and no format that is known explains this factor'
    end as why_so,
    coalesce(t.kind, format('unknown {:.1g}', o.gain)) as cause
from odd as o
left join best as b
    on (o.layer, o.tensor, o.rank, o.fmt) = (b.layer, b.tensor, b.rank, b.fmt)
    and o.recipe is not distinct from b.recipe
left join told as t
    on (o.layer, o.tensor, o.rank, o.fmt) = (t.layer, t.tensor, t.rank, t.fmt)
    and o.recipe is not distinct from t.recipe
