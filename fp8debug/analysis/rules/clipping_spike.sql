-- At a single step a tensor is far larger than its amax history knows, and is clipped.
/*
severity = "warning"
priority = 22
sentence = "at step {first_step} the scale under {recipe} is {scale_gap_bits:.1f} bits too large{lost}"
advice = "Look at the amax of this operand over the run and at loss and gradient norm of that step; current scaling has no such spikes, a margin makes them smaller."
symptom = "a loss spike late in training, or divergence after many good steps"
why = """
Delayed scaling takes its scale from the past. When an outlier appears that is several times the largest of the history, it is clipped in that
step: few values, so that the overflow share stays below any threshold, but they carry the tensor. Late in long trainings such spikes of the input
of down_proj end runs. In the steps after it the outlier is in the history and the scale is as many bits too small: harmless in
FP8, and not told. Gradients are another matter: in healthy small GPTs all of them have been up to 64 times the largest of the history for a
step (6 bits), so a spike of dy is to be watched and no more. Small single hits are left to `isolated_hits`; a spike that comes back often enough is the finding `clipping`.
"""
thresholds = ["gap_bits", "warmup_rolls", "min_nonzero"]

[[evidence]]
column = "scale_gap_bits"
title = "scale gap, bits"
healthy = "0"
format = "+.2f"

[[evidence]]
column = "sqnr_db"
title = "SQNR, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "overflow_percent"
title = "overflow, %"
healthy = "0"
format = ".2g"

[parameters.spike_bits]
default = 3
meaning = "scale gap from which one step is enough"
source = "amax eight times the largest of the history"
unit = "bits"

[parameters.spike_sqnr_db]
default = 10
meaning = "where the step was sampled, only below this SQNR"
source = "two thirds of what rounding leaves are lost"
unit = "dB"
*/
select
    layer, tensor, recipe, first_step, last_step, if(n_gap_hit_steps > 0, n_gap_hit_steps, n_hit_steps) as n_steps,
    if(n_gap_hit_steps > 0, n_gap_steps, n_observed_steps) as n_observed_steps, db_lost,
    greatest(scale_gap_bits, worst_scale_gap_bits) as scale_gap_bits,
    case when n_hit_steps > 0 then sqnr_db end as sqnr_db, 100 * overflow as overflow_percent, healthy_sqnr_db,
    case
        when n_hit_steps > 0
        then format(': {} of the values are clipped, and the SQNR is {:.1f} dB', percent(overflow), sqnr_db)
        else '; the error of that step was not sampled'
    end as lost,
    format('step {}', first_step) as cause, case when tensor = 'dy' then 'watch' end as severity
from operands
where level = 'hit' and by_gap and not is_persistent
  and greatest(scale_gap_bits, worst_scale_gap_bits) >= $spike_bits
  and (n_hit_steps = 0 or sqnr_db < $spike_sqnr_db);
