-- One channel, or a few values, grow away from all others, step by step.
/*
severity = "watch"
priority = 48
only_if = ["exists (from stored.channels where measure = 'amax') or exists (from stored.errors)"]
sentence = "{what} has grown from {ratio_before:.3g} to {ratio_after:.3g} times the typical one, steadily from step {first_step} to {last_step}"
advice = """Watch it against the scale gap: delayed scaling clips what grows faster than its history knows. Block scaling, a smoothed weight \
or BF16 for this operand are the remedies; `fp8debug plan` finds the cheapest."""
symptom = "a run that was fine for long diverges late"
why = """
Activations of large models develop outliers late in training: with SwiGLU, single channels grow by orders of magnitude while the others stay, \
because two weights align. One scale for the tensor follows the outlier, and the small values lose their range; under delayed scaling the jump \
of the outlier clips first. The trend shows long before either hurts: the largest channel against the median one, or, where channels were not \
recorded, the largest value against the typical size of the smallest 99 %.

When everything grows alike the ratio stays, and nothing is told. Where the same operand already fails by its recorded figures, the finding is \
a warning.
"""

[parameters.doublings]
default = 2.0
unit = "bits"
meaning = "how often the ratio must have doubled, last quarter of the run against the first"
source = "healthy small trainings settle within one doubling after their first steps"

[parameters.trend]
default = 0.8
meaning = "rank correlation of the ratio with the step (Spearman)"
source = "0.8 over 8 points is exceeded by chance once in a hundred times"

[parameters.setback]
default = 0.34
meaning = "largest setback on the way as a share of the growth, in bits; up to it the growth counts as steady, too"
source = "an outlier that has reached its final size wanders about it, which spoils the rank correlation"

[parameters.jump]
default = 0.6
meaning = "largest growth between two sampled steps as a share of all of it, in bits"
source = "what comes in one step does not grow: it is a spike or a change that somebody made"

[parameters.least_channel]
default = 16
meaning = "largest channel over the median one in the end"
source = "normal values give 1.5, a thousand-fold channel costs nothing yet in E4M3"

[parameters.least_value]
default = 64
meaning = "largest value over the typical size of the smallest 99 % in the end, where channels were not recorded"
source = "normal values give 5; four times the ratio of channels, as the largest of many normal values is"

[parameters.min_points]
default = 8
meaning = "sampled steps that a trend needs"
source = "a rank test of fewer proves nothing"

[[evidence]]
column = "ratio_after"
title = "largest / typical, end of the run"
healthy = "{ratio_before:.3g}, as in its first quarter"
format = ".4g"

[[evidence]]
column = "spearman"
title = "rank correlation with the step"
healthy = "near 0"
format = ".2f"
*/
with channel_points as (
    select
        layer, tensor, axis, step, max(worst_value / bin_edge('amax', middle)) as ratio,
        arg_max(worst_channel, worst_value / bin_edge('amax', middle)) as channel
    from (
        select
            layer, tensor, axis, step, worst_value, worst_channel,
            bins[list_position(
                list_transform(counts, lambda c, i: list_sum(counts[1:i]) * 2 >= list_sum(counts)), true
            )] as middle
        from channels
        where measure = 'amax' and worst_value > 0 and is_judged_pass(pass) and axis <> 'token' and len(bins) > 0
    )
    group by layer, tensor, axis, step
),
value_points as (
    select
        e.layer, e.tensor, null::varchar as axis, e.step,
        max(t.amax / sqrt(e.low_sum_x2 / e.n_low)) as ratio, null::bigint as channel
    from stored.errors as e
    join tensors as t using (segment, rank, seq)
    where e.low_sum_x2 > 0 and e.n_low >= getvariable('min_nonzero') and is_judged_pass(e.pass)
      and e.source <> 'payload' and not e.alternate
    group by e.layer, e.tensor, e.step
),
points as (
    select * from channel_points
    union all
    select * from value_points
    anti join (select distinct layer, tensor from channel_points) using (layer, tensor)
),
large as (
    -- The median of the last quarter is not above the maximum: nothing else need be put in order.
    select layer, tensor
    from points
    where isfinite(ratio) and ratio >= case when axis is null then $least_value else $least_channel end
    group by layer, tensor
),
ranked as (
    select
        *, log2(ratio) - lag(log2(ratio)) over series as rise,
        log2(max(ratio) over (series rows between unbounded preceding and current row) / ratio) as setback, rank() over (partition by layer, tensor, axis order by ratio) as ratio_rank,
        row_number() over series as number, count(*) over (partition by layer, tensor, axis) as n
    from points
    semi join large using (layer, tensor)
    where isfinite(ratio)
    window series as (partition by layer, tensor, axis order by step)
),
trends as (
    select
        layer, tensor, axis, any_value(n) as n_steps, min(step) as first_step, max(step) as last_step,
        median(ratio) filter (4 * number <= n) as ratio_before, median(ratio) filter (4 * (n - number) < n) as ratio_after,
        corr(ratio_rank, number) as spearman, max(setback) as setback, max(rise) as rise, mode(channel) filter (4 * (n - number) < n) as channel
    from ranked
    where n >= $min_points
    group by layer, tensor, axis
),
growing as (
    select *, log2(ratio_after / ratio_before) as doublings
    from trends
    where ratio_after >= case when axis is null then $least_value else $least_channel end
      and doublings >= $doublings and (spearman >= $trend or setback <= $setback * doublings)
      and rise <= $jump * doublings
    qualify row_number() over (partition by layer, tensor order by doublings desc) = 1
)
select
    g.*, g.n_steps as n_observed_steps,
    case when axis is null then 'the largest value' else format('channel {} along {}', channel, axis) end as what,
    case when c.layer is not null then 'warning' end as severity
from growing as g
left join (select distinct layer, tensor from candidates) as c using (layer, tensor)
