-- The scale of a weight comes from an amax that is not the weight's: usually from before a checkpoint was loaded.
/*
severity = "error"
confidence = "certain"
priority = 11
only_if = [
    "exists (from stored.scales where source = 'framework')",
    "exists (from framework_scales where tensor = 'w' and starts_with(recipe, 'delayed') and abs(scale_gap_bits) > getvariable('gap_bits'))",
]
sentence = "weight amax history disagrees with the weight: the scale was set for an amax of {used:.3g}, the weight's is {amax:.3g}, {effect}"
advice = "Reset or recompute the weight's amax history after a checkpoint is loaded, before the first forward."
symptom = "fine-tuning in FP8 does not converge although the checkpoint is right"
why = """
A weight changes little in a step, so its history must agree with it from the very first step. When a checkpoint is loaded into FP8
parameters and the amax recorded for the random initialisation survives, the first scale belongs to weights that are no longer there: the
loaded ones are clipped to the format's maximum, or vanish below its smallest subnormal. One observation suffices. A history that is somewhat
too large and loses nothing (weights that shrank) is healthy, and so is one that holds the amax of the step before (a LoRA matrix that starts
at zero and doubles).
"""
explains = ["clipping", "clipping_spike", "underflow", "sqnr_low", "gain_off", "gemm_error", "stale_scale", "frozen_scale", "format_choice"]
thresholds = ["gap_bits", "underflow"]

[[evidence]]
column = "scale_gap_bits"
title = "scale gap, bits"
healthy = "0"
format = "+.1f"

[[evidence]]
column = "overflow_percent"
title = "overflow, %"
healthy = "0"
format = ".3g"

[[evidence]]
column = "underflow_percent"
title = "underflow, %"
healthy = "under 1"
format = ".3g"

[[evidence]]
column = "sqnr_db"
title = "SQNR, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"
*/
with suspicious as (
    select distinct layer, recipe
    from framework_scales
    where tensor = 'w' and starts_with(recipe, 'delayed') and abs(scale_gap_bits) > getvariable('gap_bits')
),
weights as (
    select
        segment, rank, seq, step, layer, tensor, recipe, fmt, amax, scale_gap_bits,
        lag(amax) over (partition by rank, layer, recipe, fmt order by segment, seq) as last_amax, top / scale as implied
    from framework_scales
    join framework_operands using (segment, rank, layer, tensor, recipe, fmt)
    semi join suspicious using (layer, recipe)
    where tensor = 'w'
),
before as (
    -- The weight of the step before, in all micro-batches of a step.
    select
        * exclude (last_amax),
        first_value(last_amax) over (partition by rank, layer, recipe, fmt, segment, step order by seq) as last_amax
    from weights
),
compared as (
    select
        w.*, e.sqnr_db, e.underflow, e.overflow, e.db_lost, e.healthy_sqnr_db,
        w.scale_gap_bits > 0 as is_clipped
    from before as w
    left join sampled_evidence as e using (segment, rank, seq, recipe, fmt)
    where abs(w.scale_gap_bits) > getvariable('gap_bits') and abs(log2(w.implied / w.amax)) > getvariable('gap_bits')
      and not is_near(w.implied, w.last_amax, w.last_amax)  -- a weight that was recorded, and has changed since
      and not coalesce(w.last_amax = 0 and w.implied >= fmt_max(w.fmt) / 2, false)  -- the scale of zeros is 1, as in LoRA at its start
      and (w.scale_gap_bits > 0 or e.underflow > getvariable('underflow'))
),
seen as (
    select layer, tensor, recipe, count(distinct step) as n_observed_steps
    from framework_scales
    where layer in (select layer from compared) and tensor = 'w'
    group by layer, tensor, recipe
)
select
    layer, tensor, recipe, min(step) as first_step, max(step) as last_step, count(distinct step) as n_steps,
    any_value(n_observed_steps) as n_observed_steps, max(db_lost) as db_lost, arg_min(implied, step) as used,
    arg_min(amax, step) as amax, median(scale_gap_bits) as scale_gap_bits, median(sqnr_db) as sqnr_db,
    100 * median(overflow) as overflow_percent, 100 * median(underflow) as underflow_percent,
    any_value(healthy_sqnr_db) as healthy_sqnr_db,
    case
        when is_clipped
        then 'so it is clipped' || coalesce(format(': {} of its values', percent(median(overflow))), '')
        else format('so {} of its values become zero', percent(median(underflow)))
    end as effect
from compared
join seen using (layer, tensor, recipe)
group by layer, tensor, recipe, is_clipped;
