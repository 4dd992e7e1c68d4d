-- A scale too large for the tensor, step after step: its largest values are clipped.
/*
severity = "error"
priority = 20
only_if = ["exists (from operands where level = 'hit' and is_persistent)"]
sentence = "under {recipe} the scale is {scale_gap_bits:.1f} bits too large{lost}"
advice = "Use a longer amax history, a margin, or current scaling for this tensor; `fp8debug plan` finds the cheapest that works."
symptom = "the loss rises or diverges under delayed scaling"
why = """
A scale that is too large maps the largest values beyond the format's maximum, where they are clipped. Half a bit already costs more than
rounding does; a whole bit costs 8 dB in E4M3. Delayed scaling clips when a tensor grows faster than its history knows.
"""
explains = ["underflow", "sqnr_low", "gain_off", "gemm_error"]
thresholds = ["gap_bits", "min_steps", "min_steps_short", "short_run_steps", "min_share", "warmup_rolls", "min_nonzero"]

[[evidence]]
column = "scale_gap_bits"
title = "scale gap, bits"
healthy = "0"
format = "+.1f"

[[evidence]]
column = "overflow_percent"
title = "overflow, %"
healthy = "0"
format = ".2g"

[[evidence]]
column = "sqnr_db"
title = "SQNR, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"
*/
select
    layer, tensor, recipe, first_step, last_step, if(n_gap_hit_steps > 0, n_gap_hit_steps, n_hit_steps) as n_steps,
    if(n_gap_hit_steps > 0, n_gap_steps, n_observed_steps) as n_observed_steps, db_lost, scale_gap_bits,
    100 * overflow as overflow_percent, sqnr_db, healthy_sqnr_db,
    coalesce(format(', so {} of the values are clipped', percent(overflow)), '; no error was sampled there') as lost
from candidates
where list_contains(criteria, 'gap')
