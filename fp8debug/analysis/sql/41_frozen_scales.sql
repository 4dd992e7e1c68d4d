-- Scales of the framework that have not changed lately although the amax moved, and since which step.
-- since_step: first step under this scale
-- last_step: last recorded step, still under it
-- n_steps: recorded steps from the one to the other
-- min_amax: smallest amax under this scale
-- max_amax: largest amax under this scale
-- min_gap_bits: smallest gap under this scale
-- max_gap_bits: largest gap under this scale
-- history_is_zero: the amax history was empty or nothing but zeros all the time; NULL when it is not known
-- is_off: the scale was always far from the right one: more than gap_bits above it or below
-- message: the same in words
create or replace view frozen_scales as
with seen as (
    select *, scale is distinct from lag(scale) over same as is_new
    from scale_gaps
    where source = 'framework' and is_judged_pass(pass) and recipe not like 'static%'
    window same as (partition by rank, layer, tensor, recipe, fmt order by segment, seq)
),
numbered as (
    select
        *, sum(is_new::int) over (partition by rank, layer, tensor, recipe, fmt order by segment, seq) as stretch
    from seen
),
stretches as (
    select
        rank, layer, tensor, recipe, fmt, stretch, any_value(scale) as scale, min(step) as since_step,
        max(step) as last_step, count(distinct step) as n_steps, min(amax) as min_amax, max(amax) as max_amax,
        min(scale_gap_bits) as min_gap_bits, max(scale_gap_bits) as max_gap_bits,
        bool_and(history_zeros >= history_len) as history_is_zero
    from numbered
    group by rank, layer, tensor, recipe, fmt, stretch
    qualify stretch = max(stretch) over (partition by rank, layer, tensor, recipe, fmt)
)
select
    * exclude (stretch),
    coalesce(stayed_off(n_steps, scale, scale, min_amax, max_amax, min_gap_bits, max_gap_bits), false) as is_off,
    format(
        'scale frozen at {:.4g} since step {} while the amax moved from {:.3g} to {:.3g}', scale, since_step,
        min_amax, max_amax
    ) || case when history_is_zero then '; the amax history holds nothing but zeros' else '' end as message
from stretches
where n_steps > 1 and min_amax < max_amax and scale is not null;
