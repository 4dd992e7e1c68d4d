-- No scale fits: the framework recorded one of 0 or infinity, or the tensor is so small that maximum/amax overflows.
/*
severity = "watch"
confidence = "certain"
priority = 15
only_if = [
    "exists (from degenerate_operands) or exists (from stored.scales where source = 'framework' and (scale <= 0 or not isfinite(scale)))",
]
explains = ["clipping", "clipping_spike", "underflow", "sqnr_low", "gain_off", "gemm_error", "format_choice", "weight_history"]
sentence = "{what}"
advice = "Put a lower bound on the amax (1e-12 is usual) and cap the scale at the largest finite FP32 value; then ask why the tensor is almost zero."
symptom = "Inf or NaN where a tensor is almost zero"
why = """
The scale is the format's maximum over the amax. For an amax below 1.3e-36 in E4M3 (1.7e-34 in E5M2) that overflows FP32, and an infinite scale
turns zeros into NaN: 0 times infinity. Such a tensor is labelled DEGENERATE and not judged by its underflow: it is zero for every practical
purpose. A scale that the framework recorded as 0, infinite or NaN is an error whatever the tensor. Healthy: finite scales, and amaxes
above 1e-30; a tensor that is all zero (amax 0) has scale 1 and no error.
"""

[[evidence]]
column = "min_amax"
title = "smallest amax"
healthy = "0, or above 1e-30"

[[evidence]]
column = "scale"
title = "recorded scale"
healthy = "finite, above 0"
*/
with recorded as (
    select
        layer, tensor, any_value(recipe) as recipe, min(step) as first_step, max(step) as last_step,
        count(distinct step) as n_steps, arg_min(scale, step) as scale
    from scales
    where source = 'framework' and (scale <= 0 or not isfinite(scale))
    group by layer, tensor
)
select
    layer, tensor, recipe, first_step, last_step, n_steps, scale, 'error' as severity,
    'inf'::double as db_lost, format('framework {}', scale) as cause,
    format('the recorded scale is {} at step {}: values scaled with it are not finite or zero', scale, first_step) as what
from recorded
union all by name
select
    layer, tensor, first_step, last_step, n_steps, min_amax, 'tiny' as cause,
    format('DEGENERATE: the amax is {:.3g}, for which the scale of {} would be infinite', min_amax, fmt) as what
from degenerate_operands
where (layer, tensor) not in (select (layer, tensor) from recorded)
  and (layer, tensor) not in (select (layer, tensor) from told_candidates);
