-- Under a block recipe an operand's values come back larger or smaller by one factor: its block scales are wrong.
/*
severity = "error"
priority = 41
only_if = ["exists (from stored.blocks)"]
sentence = "under {recipe} the values that {gemm} reads come back multiplied by {gain:.3g}"
advice = "Compare the block scales that the cast used with those that the GEMM reads: layout, orientation and rounding to a power of two."
symptom = "the loss is worse from the first step under a block recipe"
why = """
As for whole tensors, rounding alone keeps the factor by which values come back within 1/17 of 1 in E4M3 and 1/9 in E5M2. Beyond it block
scales were rounded up without casting again, read in the other orientation, or clip: a block scale rounded to the nearest power of two
clips more than half of the blocks. Healthy operands show 1.00.
"""
explains = ["gemm_error"]
thresholds = ["gain_bound_e4m3", "gain_bound_e5m2", "min_steps", "min_steps_short", "short_run_steps", "min_share", "min_nonzero"]

[[evidence]]
column = "gain"
title = "gain"
healthy = "1"
format = ".3g"

[[evidence]]
column = "sqnr_db"
title = "SQNR, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"
*/
with judged as (
    select
        layer, tensor, gemm, recipe, fmt, step, gain(sum_xq, sum_x2) as gain, sqnr_db(sum_x2, sum_err2) as sqnr_db,
        is_gain_hit(gain, fmt) as is_off
    from blocks
    where not alternate and is_judged_pass(pass) and n_nonzero >= getvariable('min_nonzero') and sum_x2 > 0
      and fmt in ('E4M3', 'E5M2', 'E4M3FNUZ', 'E5M2FNUZ')
)
select
    layer, tensor, gemm, recipe, min(step) filter (is_off) as first_step, max(step) filter (is_off) as last_step,
    count(distinct step) filter (is_off) as n_steps, count(distinct step) as n_observed_steps,
    median(gain) filter (is_off) as gain, median(sqnr_db) filter (is_off) as sqnr_db,
    baseline_db(fmt) as healthy_sqnr_db,
    greatest(0, baseline_db(fmt) - median(sqnr_db) filter (is_off)) as db_lost
from judged
group by layer, tensor, gemm, recipe, fmt
having is_persistent(count(distinct step) filter (is_off), count(distinct step));
