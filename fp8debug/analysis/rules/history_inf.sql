-- The amax history of the framework holds an Inf or a NaN: its scale cannot follow the tensor until that has left.
/*
severity = "error"
confidence = "certain"
priority = 10
only_if = [
    "exists (from stored.scales where source = 'framework')",
    "exists (from stored.scales where not isfinite(amax_used)) or exists (from stored.tensors where n_posinf > 0 or n_neginf > 0 or not isfinite(amax))",
]
sentence = "{what}"
advice = "Find the step that brought it in (see `nonfinite`), and clear this operand's amax history; a shorter window forgets sooner."
symptom = "after one overflow the loss does not recover for a long time"
why = """
While the largest amax of the window is infinite, no scale can be computed and the last one stays: for as many micro-batches as the window is
long, 1,024 by default, after a single infinite value that everything else may have survived (a step that a scaler skipped, for one). In a
healthy run every amax in a history is finite.
"""
explains = ["frozen_scale", "stale_scale", "clipping", "clipping_spike", "underflow", "sqnr_low", "gain_off", "gemm_error"]
thresholds = ["gap_bits"]
*/
with infinite as (
    select layer, tensor, recipe, rank, step, history_len, amax_used, scale
    from framework_scales
    where starts_with(recipe, 'delayed') and not isfinite(amax_used)
),
seen as (
    select segment, layer, tensor, recipe, rank, min(step) as inf_step
    from framework_scales
    where starts_with(recipe, 'delayed') and not isfinite(amax)
    group by segment, layer, tensor, recipe, rank
),
held as (
    select
        f.layer, f.tensor, f.recipe, f.rank, s.inf_step, count(distinct f.step) as n_steps, min(f.step) as first_step,
        max(f.step) as last_step, min(f.scale) as scale, max(f.scale) as max_scale, min(f.amax) as min_amax,
        max(f.amax) as max_amax, min(f.scale_gap_bits) as low, max(f.scale_gap_bits) as high
    from framework_scales as f
    join seen as s using (segment, layer, tensor, recipe, rank)
    where f.step > s.inf_step and isfinite(f.amax)
    group by all
    having n_steps > 1 and scale = max_scale and min_amax < max_amax
       and greatest(abs(low), abs(high)) > getvariable('gap_bits') and not contains(f.recipe, 'most_recent')
)
select
    layer, tensor, recipe, rank, min(step) as first_step, max(step) as last_step, count(distinct step) as n_steps,
    null::double as db_lost,
    format('the amax history holds an Inf or NaN since step {}: the scale stays at {}', min(step),
           number_text(arg_max(scale, step))) as what
from infinite
group by layer, tensor, recipe, rank
union all by name
select
    layer, tensor, recipe, rank, first_step, last_step, n_steps,
    format('an infinite amax of step {} is in the history: the scale has stayed at {} since', inf_step,
           number_text(scale)) as what
from held
where (layer, tensor, recipe) not in (select (layer, tensor, recipe) from infinite);
