-- An operand's values come back larger or smaller by one factor: more than rounding can do.
/*
severity = "error"
priority = 40
only_if = ["exists (from operands where level = 'hit' and is_persistent)"]
sentence = "under {recipe} the values come back multiplied by {gain:.3g}"
advice = "Compare the scale that the cast used with the one that the GEMM was given: gain 0.5, 2 or 8 names the factor between them."
symptom = "the loss is worse from the first step although cosine similarity is above 0.999"
why = """
The gain is the factor by which values come back after the cast: sum(x q) / sum(x x). Rounding alone keeps it within 1/17 of 1 in E4M3 and
1/9 in E5M2, whatever the tensor; healthy tensors show 1.00. A gain of 0.25, 0.5, 2 or 8 is a scale that was applied on one side only; a gain
somewhat below 1 is clipping. Cosine similarity is blind to all of this.
"""
explains = ["sqnr_low", "gemm_error"]
thresholds = ["gain_bound_e4m3", "gain_bound_e5m2", "min_steps", "min_steps_short", "short_run_steps", "min_share", "warmup_rolls",
              "min_nonzero"]

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
select
    layer, tensor, recipe, first_step, last_step, n_hit_steps as n_steps, n_observed_steps, db_lost, gain, sqnr_db,
    healthy_sqnr_db
from told_candidates
where list_contains(criteria, 'gain') and not list_contains(criteria, 'gap') and not list_contains(criteria, 'underflow')
  and is_gain_hit(gain, fmt);
