-- Of the micro-batches of a step only the last one's amax reaches the history: the largest values of the others are clipped.
/*
severity = "error"
confidence = "likely"
priority = 13
only_if = ["exists (from stored.scales where source = 'framework')", "exists (from doubtful_scales)"]
sentence = "{what}"
advice = "Take the maximum over the micro-batches of a step before the history is rolled: with gradient accumulation, an amax that is written instead of maximised keeps the last."
symptom = "FP8 with gradient accumulation looks a little worse than without"
why = """
With gradient accumulation the amax of a step is the largest over its micro-batches. Where it travels as a value that each micro-batch
overwrites, only the last one arrives, and a micro-batch with larger values is cast with a scale that is too large for it. There is no
error and no NaN, and averages over a step hide it: the worst micro-batch is quoted. It is told when the recorded scale follows from the
last micro-batch in the steps where that makes a difference.
"""
explains = ["clipping", "clipping_spike", "stale_scale", "frozen_scale", "sqnr_low", "gain_off", "gemm_error"]
thresholds = ["gap_bits", "min_steps", "min_steps_short", "short_run_steps", "min_share"]

[[evidence]]
column = "worst_bits"
title = "scale gap of the worst micro-batch, bits"
healthy = "0"
format = "+.1f"

[[evidence]]
column = "overflow_percent"
title = "overflow there, %"
healthy = "0"
format = ".2g"

[[evidence]]
column = "worst_sqnr_db"
title = "SQNR there, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[parameters.kept_share]
default = 0.1
meaning = "not told when more of the telling steps than this follow from another micro-batch"
source = "amaxes of BF16 tensors coincide by chance in about one of a hundred steps"
*/
with lost as (
    select * from scale_checks
    where n_lost_steps > 0 and n_kept_steps <= $kept_share * n_lost_steps
      and (n_lost_steps >= getvariable('min_steps_short') or n_steps = 1)
),
worst as (
    select
        layer, tensor, recipe, fmt, rank,
        arg_max({step: step, microbatch: microbatch, bits: scale_gap_bits, amax: amax, used: amax_used}, scale_gap_bits)
            as peak
    from framework_scales
    where (layer, tensor) in (select (layer, tensor) from lost)
    group by layer, tensor, recipe, fmt, rank
),
sampled as (
    select
        layer, tensor, recipe, fmt, rank, arg_min(overflow, sqnr_db) as overflow, min(sqnr_db) as worst_sqnr_db,
        any_value(healthy_sqnr_db) as healthy_sqnr_db, max(db_lost) as db_lost
    from sampled_evidence
    where source = 'framework' and not alternate and (layer, tensor) in (select (layer, tensor) from lost)
    group by layer, tensor, recipe, fmt, rank
)
select
    layer, tensor, recipe, rank, first_lost_step as first_step, last_lost_step as last_step, n_lost_steps as n_steps,
    l.n_steps as n_observed_steps, db_lost, peak.bits as worst_bits, 100 * overflow as overflow_percent, worst_sqnr_db,
    healthy_sqnr_db,
    format('the scale follows from the last micro-batch of each step alone: at step {}, micro-batch {}, the amax is '
           || '{:.3g} and the scale {:.1f} bits too large', peak.step, peak.microbatch, peak.amax, peak.bits)
    || coalesce(format('; {} of the values are clipped there and {:.1f} dB are left', percent(overflow), worst_sqnr_db),
                '') as what
from lost as l
join worst using (layer, tensor, recipe, fmt, rank)
left join sampled using (layer, tensor, recipe, fmt, rank)
where peak.bits > getvariable('gap_bits');
