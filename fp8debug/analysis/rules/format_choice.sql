-- The element format in use fails for an operand, and the one recorded beside it does not.
/*
severity = "note"
confidence = "likely"
priority = 70
only_if = ["exists (from operands where level = 'hit' and is_persistent)"]
sentence = "under {recipe} {fmt} keeps {sqnr_db:.1f} dB, and {other_fmt}, recorded beside it, {other_sqnr_db:.1f} dB with {other_underflow_percent:.2g} % underflow"
advice = "Try the other format for this operand: `fp8debug plan` writes it for your framework where that can choose formats by tensor."
symptom = "gradients lose more in one FP8 format than in the other"
why = """
E5M2 has range, E4M3 has precision, and which one a gradient needs is decided by the tensor. So SQNR and underflow are read together: a format is
only called better where both are fine, SQNR above the worst case of rounding and underflow within its bound. It is a note beside the finding that
says what is wrong with the format in use.
"""
thresholds = ["sqnr_floor_e4m3", "sqnr_floor_e5m2", "underflow", "min_nonzero", "warmup_rolls"]

[[evidence]]
column = "sqnr_db"
title = "SQNR in the format in use, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "other_sqnr_db"
title = "SQNR in the other, dB"
healthy = "{other_healthy_db:.1f}"
format = ".1f"

[[evidence]]
column = "other_underflow_percent"
title = "underflow in the other, %"
healthy = "under 1"
format = ".2g"
*/
with beside as (
    select
        layer, tensor, recipe, fmt as other_fmt, median(sqnr_db) as other_sqnr_db, median(sqnr_low_db) as other_low_db,
        median(underflow) as other_underflow, any_value(healthy_sqnr_db) as other_healthy_db
    from sampled_evidence
    where alternate and (layer, tensor) in (select (layer, tensor) from told_candidates)
    group by layer, tensor, recipe, fmt
)
select
    layer, tensor, recipe, fmt, first_step, last_step, n_hit_steps as n_steps, n_observed_steps, sqnr_db,
    healthy_sqnr_db, other_fmt, other_sqnr_db, 100 * other_underflow as other_underflow_percent, other_healthy_db
from told_candidates
join beside using (layer, tensor, recipe)
where least(other_sqnr_db, other_low_db) >= sqnr_floor_db(other_fmt)
  and other_underflow <= getvariable('underflow') and n_hit_steps > 0;
