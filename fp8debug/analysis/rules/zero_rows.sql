-- Under a recipe with one scale a row there are rows of zeros, whose amax is 0: the scale needs an epsilon.
/*
severity = "note"
confidence = "likely"
priority = 16
only_if = ["exists (from stored.blocks where starts_with(recipe, 'rowwise') and n_zero_blocks > 0)"]
sentence = "{what}"
advice = "Give the row-wise quantiser a lower bound for the amax, such as 1e-12 (in torchao `activation_value_lb`); check with `nonfinite` whether a NaN starts at one of these rows."
symptom = "loss and gradient norm are NaN from the first step with row-wise scaling"
why = """
One scale a row is the format's maximum over the row's amax. A row of zeros (padding, a masked token, a LoRA matrix at its start) has amax 0, and
without an epsilon the scale is infinite and the row becomes 0 times infinity, NaN; the loss is NaN from the first step. With an epsilon such rows come
back as zeros, nothing is lost, and this is no more than a note. It is an error where the codes that a GEMM read, or block scales, are not finite.
"""

[[evidence]]
column = "n_zero_rows"
title = "rows of zeros in a record"
healthy = "any, with an epsilon"
format = "d"

[[evidence]]
column = "n_bad"
title = "NaN codes, or rows with a scale that is not finite"
healthy = "0"
format = "d"
*/
with rows_of_zeros as (
    select
        layer, tensor, recipe, min(step) as first_step, max(step) as last_step, count(distinct step) as n_steps,
        arg_min(n_zero_blocks, seq) as n_zero_rows, arg_min(n_blocks, seq) as n_rows,
        count(*) filter (not isfinite(scale_max) or scale_min = 0) as n_bad_scales
    from blocks
    where starts_with(recipe, 'rowwise') and orientation = 'row' and n_zero_blocks > 0 and is_judged_pass(pass)
    group by layer, tensor, recipe
),
bad_codes as (
    select layer, tensor, sum(n_nan)::bigint as n_nan
    from nonfinite_records
    where is_codes
    group by layer, tensor
)
select
    layer, tensor, recipe, first_step, last_step, n_steps, n_zero_rows,
    nullif(coalesce(n_nan, 0) + n_bad_scales, 0) as n_bad,
    case when n_bad > 0 then 'error' end as severity, case when n_bad > 0 then 'inf'::double end as db_lost,
    format('{} of {} rows are zero at step {}, which have no scale of their own: the row-wise scale needs eps', n_zero_rows,
           n_rows, first_step)
    || case when n_bad > 0 then '; values read in low precision are not finite' else '' end as what
from rows_of_zeros
left join bad_codes using (layer, tensor);
