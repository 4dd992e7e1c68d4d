-- The error of an operand is larger than rounding in its format can make it, and no scale or underflow explains it.
/*
severity = "warning"
priority = 60
only_if = ["exists (from operands where level = 'hit' and is_persistent)"]
sentence = "under {recipe} the SQNR is {sqnr_db:.1f} dB, below the {floor_db:.1f} dB that rounding in {fmt} gives at worst"
advice = "Look at the histogram of this operand and at what `fp8debug whatif` says of other formats and scalings; until it is clear, keep its GEMMs in BF16."
symptom = "the loss is worse than in BF16 and no scale is wrong"
why = """
Rounding in the normal range of a format has a worst case, whatever the tensor: 24.6 dB in E4M3 and 19.1 dB in E5M2. Bell shapes at any good
scale show 31.5 and 25.6 dB. Anything below the worst case means that something beside rounding happened: values clipped, values lost below the
smallest subnormal, or a wrong scale. Clipping and underflow are told by their own rules; what is left is told here. The absolute error is
never looked at: it depends on the unit of the tensor.
"""
explains = ["gain_off", "gemm_error"]
thresholds = ["sqnr_floor_e4m3", "sqnr_floor_e5m2", "min_steps", "min_steps_short", "short_run_steps", "min_share", "warmup_rolls",
              "min_nonzero"]

[[evidence]]
column = "sqnr_db"
title = "SQNR, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "underflow_percent"
title = "underflow, %"
healthy = "under 1"
format = ".3g"

[[evidence]]
column = "gain"
title = "gain"
healthy = "1"
format = ".3g"
*/
select
    layer, tensor, recipe, fmt, first_step, last_step, n_hit_steps as n_steps, n_observed_steps, db_lost,
    sqnr_db, healthy_sqnr_db, 100 * underflow as underflow_percent, gain,
    sqnr_floor_db(fmt) as floor_db
from told_candidates
where list_contains(criteria, 'sqnr') and sqnr_db is not null;
