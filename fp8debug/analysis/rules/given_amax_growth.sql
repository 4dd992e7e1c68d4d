-- By an imported log, the largest value of an operand grows, step by step.
/*
severity = "watch"
confidence = "not_enough_evidence"
priority = 49
only_if = ["exists (from stored.statistics)"]
sentence = "{what} has grown from {before:.3g} to {after:.3g}, steadily from step {first_step} to {last_step}, by the log"
advice = "Record a few steps of this layer with `fp8debug attach`: channels tell whether single ones grow away from the others, which is what hurts."
symptom = "a run that was fine for long diverges late, and there is only an old log"
why = """
Outliers that grow away from the other values cost FP8 its range, as `outlier_growing` explains; that rule needs channels or error sums, which \
a log does not have. Where it has the standard deviation beside the largest value their ratio stands in for it: it stays when everything grows \
alike. Without one only the largest value itself is known, which also grows when all values do, as in the first steps of a training; so it \
must have doubled more often.
"""

[parameters.doublings]
default = 2.0
unit = "bits"
meaning = "how often the ratio to the standard deviation must have doubled, last quarter of the log against the first"
source = "as outlier_growing: healthy small trainings settle within one doubling after their first steps"

[parameters.doublings_alone]
default = 4.0
unit = "bits"
meaning = "how often the largest value alone must have doubled"
source = "weights and activations of healthy trainings grow by up to some doublings as a whole"

[parameters.trend]
default = 0.8
meaning = "rank correlation with the step (Spearman)"
source = "0.8 over 8 points is exceeded by chance once in a hundred times"

[parameters.jump]
default = 0.6
meaning = "largest growth between two logged steps as a share of all of it, in bits"
source = "what comes in one step does not grow: it is a spike or a change that somebody made"

[parameters.min_points]
default = 8
meaning = "logged steps that a trend needs"
source = "a rank test of fewer proves nothing"

[[evidence]]
column = "after"
title = "end of the log"
healthy = "{before:.3g}, as in its first quarter"
format = ".4g"

[[evidence]]
column = "spearman"
title = "rank correlation with the step"
healthy = "near 0"
format = ".2f"
*/
with points as (
    select
        layer, tensor, step, amax, case when isfinite(std) and std > 0 then amax / std end as ratio
    from given_statistics
    where amax > 0 and recipe is null and not columnwise
),
series as (
    select
        layer, tensor, step, count(ratio) over operand = count(*) over operand as has_std,
        case when has_std then ratio else amax end as value
    from points
    window operand as (partition by layer, tensor)
),
ranked as (
    select
        *, log2(value) - lag(log2(value)) over in_order as rise, rank() over (partition by layer, tensor order by value) as value_rank,
        row_number() over in_order as number, count(*) over (partition by layer, tensor) as n
    from series
    window in_order as (partition by layer, tensor order by step)
),
trends as (
    select
        layer, tensor, any_value(has_std) as has_std, any_value(n) as n_steps, min(step) as first_step,
        max(step) as last_step, median(value) filter (4 * number <= n) as before,
        median(value) filter (4 * (n - number) < n) as after, corr(value_rank, number) as spearman, max(rise) as rise
    from ranked
    where n >= $min_points
    group by layer, tensor
)
select
    *, n_steps as n_observed_steps,
    case when has_std then 'the largest value over the standard deviation' else 'the largest value' end as what,
    'channels of this layer: `fp8debug attach`, whose sampled steps have them' as needs
from trends
where log2(after / before) >= case when has_std then $doublings else $doublings_alone end
  and spearman >= $trend and rise <= $jump * log2(after / before)
