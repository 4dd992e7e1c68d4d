-- On one rank values come back by a wrong factor, while they are right on the others.
/*
severity = "error"
priority = 9
only_if = ["(select max(rank) from stored.errors) > 0", "exists (from stored.errors where source <> 'simulated')"]
sentence = "on rank {rank} values come back {gain:.3g} times what they were, on the other ranks {others:.3g} times"
advice = "Compare that rank's scale, format and software with those of the others; a scale that was not exchanged is the usual cause."
symptom = "ranks drift apart, or the result depends on the number of ranks"
why = """
The gain is the factor by which values come back from low precision. Rounding moves it by less than 1/17 in E4M3 and 1/9 in E5M2, whatever \
the tensor. When it is farther off on one rank while others are right, the tensor is not to blame: that rank works with another scale, \
another format or other code. Only what the framework itself cast is judged, not casts that were simulated with scales of one rank alone.
"""
explains = ["gain_off", "sqnr_low"]
thresholds = ["gain_bound_e4m3", "gain_bound_e5m2", "min_nonzero", "min_steps", "min_steps_short", "short_run_steps", "min_share"]

[[evidence]]
column = "gain"
title = "gain on that rank"
healthy = "{others:.3f}"
format = ".4g"

[[evidence]]
column = "sqnr_db"
title = "SQNR on that rank, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"
*/
with measured as (
    select
        layer, tensor, recipe, fmt, rank, step, gain(sum_xq, sum_x2) as gain, sqnr_db(sum_x2, sum_err2) as sqnr_db,
        gain_bound(fmt) as bound
    from stored.errors
    semi join tensors using (segment, rank, seq)
    where source in ('framework', 'payload') and not alternate and is_judged_pass(pass)
      and n_nonzero >= getvariable('min_nonzero') and bound is not null
),
by_rank as (
    select
        layer, tensor, recipe, fmt, rank, median(gain) as gain, median(sqnr_db) as sqnr_db, any_value(bound) as bound,
        count(distinct step) as n_observed_steps, count(distinct step) filter (abs(gain - 1) > bound) as n_steps,
        min(step) filter (abs(gain - 1) > bound) as first_step, max(step) filter (abs(gain - 1) > bound) as last_step
    from measured
    group by layer, tensor, recipe, fmt, rank
),
judged as (
    select *, abs(gain - 1) > bound and is_persistent(n_steps, n_observed_steps) as is_off,
        median(gain) filter (abs(gain - 1) <= bound) over operand as others,
        count(*) filter (abs(gain - 1) <= bound) over operand as n_right, count(*) over operand as n_ranks
    from by_rank
    window operand as (partition by layer, tensor, recipe, fmt)
)
select
    layer, tensor, recipe, rank, first_step, last_step, n_steps, n_observed_steps, gain, others, sqnr_db,
    baseline_db(fmt) as healthy_sqnr_db,
    greatest(healthy_sqnr_db - sqnr_db, 0) as db_lost, 'rank ' || rank as cause
from judged
where is_off and n_right >= n_ranks - n_right
