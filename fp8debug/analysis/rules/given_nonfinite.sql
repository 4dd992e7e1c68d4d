-- An imported log has numbers that are NaN or infinite.
/*
severity = "warning"
priority = 8
only_if = ["exists (from stored.statistics where not isfinite(value))"]
sentence = "the log gives {text} for the {statistic} of this operand{where_else}"
advice = "Look at the first place in order of steps: what is not finite later follows from it as a rule. `fp8debug attach --trigger nonfinite` keeps the steps before it."
symptom = "NaN or Inf in an old log"
why = """
A largest, smallest or mean value that is NaN or infinite says that the tensor itself holds one: an error. Any other number may be so although the \
tensor is fine: a sum of squares goes beyond what FP16 can hold, a mean squared error of an infinite scale is infinite. These are warnings. \
Two are not told at all: a NaN in `std`, which known versions of Transformer Engine get wrong where they merge ranks or micro-batches of \
different means, and an infinite `dynamic_range`, which stands for a tensor of zeros.
"""

[[evidence]]
column = "n_numbers"
title = "such numbers of this operand"
healthy = "0"
format = "d"

[[evidence]]
column = "n_operands"
title = "operands with any"
healthy = "0"
format = "d"
*/
with bad as (
    select *, statistic in ('amax', 'min', 'max', 'mean') as is_of_values
    from statistics
    where not isfinite(value) and not (statistic = 'std' and isnan(value))
      and not (statistic in ('dynamic_range', 'max_blockwise_dynamic_range') and isinf(value))
),
observed as (
    select layer, tensor, count(distinct step) as n_observed_steps from statistics group by layer, tensor
),
operand as (
    select
        layer, tensor, min(step) as first_step, max(step) as last_step, count(distinct step) as n_steps,
        count(*) as n_numbers, bool_or(is_of_values) as is_of_values,
        arg_min(statistic, (step, not is_of_values, seq, statistic)) as statistic,
        arg_min(value, (step, not is_of_values, seq, statistic)) as value,
        count(distinct statistic) as n_statistics
    from bad
    group by layer, tensor
)
select
    layer, tensor, first_step, last_step, n_steps, n_observed_steps, n_numbers, count(*) over () as n_operands, statistic,
    case when isnan(value) then 'NaN' when value > 0 then 'inf' else '-inf' end as text,
    case when n_statistics > 1 then format(', and of {} more', n_statistics - 1) else '' end as where_else,
    case when is_of_values then 'error' end as severity, case when is_of_values then 'certain' else 'likely' end as confidence,
    case when not is_of_values then 'whether the values are finite: `fp8debug attach`, or cur_amax in the log' end as needs,
    'nonfinite' as cause
from operand
join observed using (layer, tensor)
