-- Operands that exist in low precision alone: what their codes tell is known, their errors are not.
/*
severity = "note"
confidence = "not_enough_evidence"
priority = 66
only_if = ["exists (from stored.tensors where status = 'payload_only')"]
sentence = "errors unknown because the high-precision tensor no longer exists; saturated codes {saturated_percent:.2g} %, subnormal codes {subnormal_percent:.2g} %"
advice = "For the errors, keep high-precision weights (FP8 parameters off) in a run that is to be judged, or compare with a checkpoint by `fp8debug audit`."
symptom = "statistics of FP8 weights are empty"
why = """
With FP8 parameters the weight exists as codes and a scale, and what it was before the cast is gone. SQNR, gain and underflow compare the two, \
so that they are unknown, not zero. What can be told from the codes is told: the largest magnitude, how many codes are at the largest value of \
the format (where clipped values end), how many are subnormal or zero, and the range of the scales. A share of saturated codes beyond that of \
the one largest value is told as something to watch.
"""
thresholds = ["watch_overflow"]

[[evidence]]
column = "saturated_percent"
title = "saturated codes, %"
healthy = "0.1 or less"
format = ".2g"

[[evidence]]
column = "subnormal_percent"
title = "subnormal codes, %"
healthy = "a few"
format = ".2g"

[[evidence]]
column = "scales"
title = "scale"
healthy = "moves with the tensor"
format = ""
*/
with told as (
    select
        layer, tensor, fmt, any_value(recipe) as recipe, min(step) as first_step, max(step) as last_step,
        count(distinct step) as n_steps, 100 * median(saturated) as saturated_percent,
        100 * median(subnormal) as subnormal_percent, min(coalesce(scale, scale_min)) as least,
        max(coalesce(scale, scale_max)) as largest
    from payloads
    where status = 'payload_only' and is_judged_pass(pass)
    group by layer, tensor, fmt
)
select
    layer, tensor, recipe, first_step, last_step, n_steps, n_steps as n_observed_steps,
    saturated_percent, subnormal_percent,
    case when least is null then null when least = largest then format('{:.4g}', least)
        else format('{:.4g} to {:.4g}', least, largest) end as scales,
    'the tensor in high precision: its errors cannot be known without it' as needs,
    -- A small tensor has its one largest value as a large share.
    case when saturated_percent > 100 * getvariable('watch_overflow') and n > getvariable('min_nonzero') then 'watch' end
        as severity,
    'payload' as cause
from told
left join (select layer, tensor, max(n) as n from payloads group by layer, tensor) using (layer, tensor)
