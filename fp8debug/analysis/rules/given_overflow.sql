-- By an imported log, values of an operand are clipped under delayed scaling, step after step.
/*
severity = "watch"
priority = 39
only_if = ["exists (from stored.statistics where statistic = 'overflow' and value > 0)"]
sentence = "{percent} of the elements are clipped under delayed scaling, by the log"
advice = "Use a longer amax history, a margin, or current scaling for this tensor; to see by how many bits the scale is off record `--first 20` with `fp8debug attach`."
symptom = "the loss rises under delayed scaling, and there is only an old log"
why = """
Transformer Engine logs `overflows%` under delayed scaling alone: the share of elements that lie beyond what the scale in force can hold. A \
scale of the current amax clips nothing, so every such element says that the tensor grew faster than its history knew. It happens at single \
steps of healthy trainings; step after step it is worth a look, and above the threshold `watch_overflow` it is a warning: 0.4 % was enough to \
ruin a real run. Steps before `warmup_rolls` are left out, in which the history is still filling.
"""
explains = ["given_amax_growth"]
thresholds = ["watch_overflow", "min_steps", "min_steps_short", "short_run_steps", "min_share", "warmup_rolls"]

[[evidence]]
column = "percent"
title = "overflow, median of these steps"
healthy = "0 %"
format = ""

[[evidence]]
column = "worst_percent"
title = "worst step"
healthy = "0 %"
format = ""
*/
with operand as (
    select
        layer, tensor, recipe, count(*) as n_observed_steps, count(*) filter (overflow > 0) as n_steps,
        min(step) filter (overflow > 0) as first_step, max(step) filter (overflow > 0) as last_step,
        median(overflow) filter (overflow > 0) as share, max(overflow) as worst
    from given_statistics
    where isfinite(overflow) and step >= getvariable('warmup_rolls')
    group by layer, tensor, recipe
)
select
    layer, tensor, 'delayed' as recipe, first_step, last_step, n_steps, n_observed_steps,
    percent(share) as percent, percent(worst) as worst_percent,
    case when share > getvariable('watch_overflow') then 'warning' end as severity,
    'the scales in force and the errors of this layer: `fp8debug attach --first 20`' as needs
from operand
where is_persistent(n_steps, n_observed_steps)
