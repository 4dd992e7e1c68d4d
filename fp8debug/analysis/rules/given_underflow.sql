-- By an imported log, many values of an operand become zero, step after step.
/*
severity = "watch"
confidence = "not_enough_evidence"
priority = 40
only_if = ["exists (from stored.statistics where statistic = 'underflow_all')"]
sentence = "{percent} of all elements become zero under {what_recipe}, by the log"
advice = """Record a few steps of this layer with `fp8debug attach`: underflow alone does not tell whether the scale is too small, outliers set it, \
or the values that vanish are too small to matter. A gradient in E4M3 is best tried in E5M2 first."""
symptom = "gradients or activations seem sparse, and there is only an old log"
why = """
Transformer Engine's `underflows%` is the share of elements that are not zero and are zero once they are quantised. Its denominator is all \
elements, true zeros included: behind a ReLU, or with padding, the share of the values that could vanish is larger than the logged number. In \
healthy small trainings the median is below a tenth of a percent, yet single operands reach 5 % and more and train well, since the values that \
vanish carry little; so this is something to watch. Where half of all elements vanish most of the tensor is gone, and that is a warning, \
provided that the log says it of the recipe in use. Which recipe that is the log tells for delayed scaling alone, or where the name has none; \
any other name may be a what-if.

Steps before `warmup_rolls` are left out where the recipe is delayed scaling or not named: its history is still filling.
"""
thresholds = ["watch_underflow", "min_steps", "min_steps_short", "short_run_steps", "min_share", "warmup_rolls"]

[parameters.most]
default = 0.5
meaning = "median share of all elements from which it is a warning"
source = "healthy small trainings stay below 0.2 in any sampled step, past the start of the history"

[[evidence]]
column = "percent"
title = "underflow of all elements, median of these steps"
healthy = "under 1 %"
format = ""

[[evidence]]
column = "worst_percent"
title = "worst step"
healthy = "under 5 %"
format = ""
*/
with judged as (
    select *, underflow_all > getvariable('watch_underflow') as is_hit
    from given_statistics
    where isfinite(underflow_all)
      and not (coalesce(recipe, 'delayed') = 'delayed' and step < getvariable('warmup_rolls'))
),
operand as (
    select
        layer, tensor, recipe, columnwise, count(*) as n_observed_steps, count(*) filter (is_hit) as n_steps,
        min(step) filter (is_hit) as first_step, max(step) filter (is_hit) as last_step,
        median(underflow_all) filter (is_hit) as share, max(underflow_all) as worst
    from judged
    group by layer, tensor, recipe, columnwise
)
select
    layer, tensor, recipe, first_step, last_step, n_steps, n_observed_steps, percent(share) as percent,
    percent(worst) as worst_percent,
    case when recipe is null then 'the recipe in use' when recipe = 'delayed' then 'delayed scaling'
         else recipe || ', which the log names and may not be in use' end
    || case when columnwise then ', read column-wise' else '' end as what_recipe,
    case when share >= $most and coalesce(recipe, 'delayed') = 'delayed' then 'warning' end as severity,
    case when share >= $most and coalesce(recipe, 'delayed') = 'delayed' then 'likely' end as confidence,
    'values and errors of this layer: `fp8debug attach --first 20`' as needs
from operand
where is_persistent(n_steps, n_observed_steps)
