-- The result of a GEMM is farther off than rounding of its two operands can make it, and no operand explains it.
/*
severity = "warning"
priority = 55
only_if = ["exists (from stored.gemms)"]
sentence = "under {recipe} the result of {gemm} is off by more than rounding: {product_sqnr_db:.1f} dB against its products, {floor_db:.1f} at worst"
advice = "Look at both operands under this recipe (`tensor_errors`, `channels`); until it is clear, keep this one GEMM in BF16."
symptom = "one result is off although its operands look fine"
why = """
The error of y = x w is judged against the sum of the squared products, not against y itself: products that cancel leave a small y with a
large relative error, and that is arithmetic, not a fault of FP8. Two operands rounded in E4M3 give 28.6 dB as a rule and 21.6 dB at worst,
E5M2 with E4M3 24.6 and 18.0 dB. Where many products are alike, as in the wgrad of an output layer, their roundings are alike too and add up as
the result does; so the error must also be beyond what both operands' relative errors together make of the result (18.6 and 15.4 dB). Below
both, something beside rounding happened. Where an operand of the GEMM has a finding of its own under the
same recipe, the error follows from it and is not told again.
"""
thresholds = ["sqnr_floor_e4m3", "sqnr_floor_e5m2", "min_steps", "min_steps_short", "short_run_steps", "min_share", "warmup_rolls"]

[[evidence]]
column = "product_sqnr_db"
title = "SQNR of the result against its products, dB"
healthy = "{healthy_db:.1f}"
format = ".1f"

[[evidence]]
column = "sqnr_db"
title = "SQNR of the result, dB"
healthy = "{healthy_db:.1f}"
format = ".1f"

[[evidence]]
column = "cancellation_db"
title = "cancellation (no fault), dB"
healthy = "any"
format = ".1f"

[[evidence]]
column = "gain"
title = "gain of the result"
healthy = "1"
format = ".3g"

[parameters.min_results]
default = 64
meaning = "samples of fewer results are not judged"
source = "the error of 64 results is known to 1 dB"
*/
with judged as (
    select
        segment, rank, seq, layer, tensor, gemm, recipe, step,
        product_sqnr_db, cancellation_db, gain, sqnr_db, result_floor_db(fmt, other_fmt) as floor_db,
        of_two_roundings_db(baseline_db(fmt), baseline_db(other_fmt)) as healthy_db,
        is_result_hit(product_sqnr_db, sqnr_db, fmt, other_fmt) as is_off
    from gemm_errors
    where not alternate and is_judged_pass(pass) and accumulation = 'exact' and n >= $min_results
      and fmt in ('E4M3', 'E5M2', 'E4M3FNUZ', 'E5M2FNUZ') and other_fmt in ('E4M3', 'E5M2', 'E4M3FNUZ', 'E5M2FNUZ')
      and (segment, rank, seq) not in (
          select (segment, rank, seq) from stored.scales
          where source = 'simulated' and n_rolls < getvariable('warmup_rolls') and starts_with(gemm_errors.recipe, 'delayed')
      )
),
off as (
    select
        layer, tensor, gemm, recipe, min(step) filter (is_off) as first_step, max(step) filter (is_off) as last_step,
        count(distinct step) filter (is_off) as n_steps, count(distinct step) as n_observed_steps,
        median(product_sqnr_db) filter (is_off) as product_sqnr_db,
        median(sqnr_db) filter (is_off) as sqnr_db, median(cancellation_db) filter (is_off) as cancellation_db,
        median(gain) filter (is_off) as gain,
        any_value(floor_db) as floor_db, any_value(healthy_db) as healthy_db
    from judged
    group by layer, tensor, gemm, recipe
    having is_persistent(count(distinct step) filter (is_off), count(distinct step))
),
explained as (
    select layer, recipe, unnest(case tensor when 'x' then ['fprop', 'wgrad'] when 'w' then ['fprop', 'dgrad']
                                 when 'dy' then ['dgrad', 'wgrad'] else [] end) as gemm
    from candidates
)
select *, greatest(0, healthy_db - product_sqnr_db) as db_lost
from off
anti join explained using (layer, recipe, gemm);
