-- A low-precision weight that is a cast of the weight of an earlier step.
/*
severity = "error"
confidence = "certain"
priority = 7
only_if = ["exists (from stored.wsample)", "exists (from checked_payloads where tensor = 'w' and sqnr_db is not null)"]
sentence = "{what}"
advice = "Make the low-precision copy anew after each optimizer step: look for a cache of FP8 weights that does not see the update (its key, `is_first_microbatch`, a version counter)."
symptom = "FP8 learns more slowly than BF16, or parameters seem frozen for some steps"
why = """
Frameworks keep FP8 copies of weights so that they need not be cast for every micro-batch. When the copy outlives the optimizer step, the \
model computes with the weights of an earlier step: the loss falls more slowly, or the training diverges late, and no scale, overflow or \
underflow shows anything. Only the SQNR of the weight falls, from step to step: 31.5, 25.0, 22.4, 20.9, 19.7 dB with a sign optimizer.

At fixed positions of each weight its value and its code are recorded in sampled steps. The codes are compared with the weight as it is now \
and as it was in the recorded steps before: when an older one fits clearly better, the copy is old. A copy that is merely noisy fits none \
better than the present one, and is not told here.
"""
explains = ["sqnr_low", "gain_off", "rank_gain", "stale_scale", "frozen_scale", "clipping", "clipping_spike"]

[parameters.better_db]
default = 0.4
unit = "dB"
meaning = "an older weight must fit by so much better than the present one"
source = "at the same 4,096 positions the difference of two SQNRs is known to a twentieth of a decibel"

[parameters.lost_db]
default = 0.4
unit = "dB"
meaning = "weights whose SQNR is less than this below that of our own cast are not followed"
source = "the SQNR of two right casts of one tensor differs by less"

[parameters.doubt_db]
default = 4.0
unit = "dB"
meaning = "from this loss on a weight is told even where the steps between were not recorded; the fitting one loses less"
source = "rounding twice costs 2.8 dB, rounding stochastically 3 dB"

[[evidence]]
column = "sqnr_db"
title = "SQNR against the weight now, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "old_sqnr_db"
title = "SQNR against the weight it is of, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "course"
title = "SQNR against the weight now by step, dB"
healthy = "{healthy_sqnr_db:.1f} in all"
format = ""
*/
with followed as (
    select c.*, coalesce(c.own_sqnr_db, baseline_db(c.fmt)) as healthy_sqnr_db
    from checked_payloads as c
    where c.tensor = 'w' and c.sqnr_db is not null
),
low as (
    -- Of each weight the first few and the last few: what lags does so for long.
    select segment, rank, seq, step, layer, fmt, recipe, healthy_sqnr_db
    from followed
    where sqnr_db < healthy_sqnr_db - $lost_db
    qualify least(
        row_number() over (partition by rank, layer, fmt order by segment, step),
        row_number() over (partition by rank, layer, fmt order by segment desc, step desc)
    ) <= 4
),
read as (
    select
        w.segment, w.rank, w.seq, l.step, w.layer, w.fmt, w.stride, l.recipe, l.healthy_sqnr_db,
        w.codes, w.scale_inv::double as scale_inv,
        power(w.scale_inv::double, 2) * list_inner_product(w.codes, w.codes) as sum_q2
    from wsample as w
    join low as l using (segment, rank, seq)
    where w.scale_inv is not null and w."values" is not null
),
present as (
    select
        w.rank, w.segment, w.step, w.layer, w.fmt, w.stride, w."values" as found,
        list_inner_product(w."values", w."values")::double as sum_x2,
        row_number() over (partition by w.rank, w.layer, w.fmt order by w.segment, w.step, w.seq) as number
    from wsample as w
    semi join low using (rank, layer, fmt)
    where w."values" is not null
),
fits as (
    select
        r.segment, r.rank, r.layer, r.step, r.recipe, r.healthy_sqnr_db, v.step as of_step, v.number,
        n.number - v.number as age,
        sqnr_db(
            v.sum_x2, v.sum_x2 - 2 * r.scale_inv * list_inner_product(v.found, r.codes)::double + r.sum_q2
        ) as sqnr_db
    from read as r
    join present as n using (rank, layer, fmt, segment, step)
    join present as v
        on (v.rank, v.layer, v.fmt, v.stride) = (r.rank, r.layer, r.fmt, r.stride)
        and len(v.found) = len(r.codes) and v.number <= n.number and (v.number > n.number - 16 or v.number = 1)
),
judged as (
    select
        rank, layer, recipe, segment, step, any_value(healthy_sqnr_db) as healthy_sqnr_db,
        any_value(sqnr_db) filter (age = 0) as now_db, max(sqnr_db) as best_db,
        max(of_step) filter (age >= 0 and sqnr_db >= best - 0.1) as of_step,
        min(age) filter (sqnr_db >= best - 0.1) as age,
        step - coalesce(max(of_step) filter (age = 1), step - 1) as distance
    from (select *, max(sqnr_db) over (partition by rank, layer, segment, step) as best from fits)
    group by rank, layer, recipe, segment, step
),
late as (
    select *, age > 0 and best_db >= now_db + $better_db and best_db >= healthy_sqnr_db - $doubt_db as is_old,
        not is_old and distance > 1 and now_db < healthy_sqnr_db - $doubt_db as may_be_old
    from judged
    where is_old or may_be_old
),
courses as (
    select rank, layer, list(format('{:.1f}', sqnr_db) order by segment, step)[1:8] as course,
        count(distinct step) as n_observed_steps,
        count(distinct step) filter (sqnr_db < healthy_sqnr_db - $lost_db) as n_low
    from followed
    group by rank, layer
),
found as (
    select
        layer, rank, recipe, bool_or(is_old) as is_old, min(step) as first_step, max(step) as last_step,
        count(distinct step) as n_hits, max_by(step - of_step, (segment, step)) filter (is_old) as lag,
        count(distinct of_step) filter (is_old) = 1 and count(*) filter (is_old) > 1 as grows,
        max_by(of_step, (segment, step)) filter (is_old) as of_step,
        max_by(now_db, (segment, step)) as sqnr_db, max_by(best_db, (segment, step)) filter (is_old) as old_sqnr_db,
        any_value(healthy_sqnr_db) as healthy_sqnr_db, max(healthy_sqnr_db - now_db) as db_lost
    from late
    where is_old or not exists (from late as l where l.is_old and (l.layer, l.rank) = (late.layer, late.rank))
    group by layer, rank, recipe
)
select
    f.*, 'w' as tensor, c.course, c.n_observed_steps,
    -- Where all that were looked at are old, so are those between.
    case when n_hits = n_judged then n_low else n_hits end as n_steps,
    case when f.is_old
        then format(
            'weights lag by {}: at step {} the GEMMs read a cast of the weight of step {} ({:.1f} dB against that one, '
            || '{:.1f} dB against the weight now){}',
            case when lag = 1 then 'one step' else lag || ' steps' end, last_step, of_step, old_sqnr_db, sqnr_db,
            case when grows then '; the lag grows: the copy is not made anew' else '' end
        )
        else format(
            'the weight that the GEMMs read is {:.1f} dB worse than a cast of it would be; it may be one of a step '
            || 'between the recorded ones', db_lost
        )
    end as what,
    case when not f.is_old then 'watch' end as severity,
    case when not f.is_old then 'not_enough_evidence' end as confidence,
    case when not f.is_old then 'weights of every step (--every 1): those of the steps between were not recorded' end
        as needs,
    case when f.is_old then 'lag' else 'low' end as cause
from found as f
join courses as c using (rank, layer)
join (select rank, layer, count(distinct step) as n_judged from judged group by rank, layer) using (rank, layer)
