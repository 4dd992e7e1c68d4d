-- Operands that are listed, with their place and the reason: hit: as candidates | watch: persistent, but no candidate.
-- Internal.
create or replace view verdicts as
select
    level,
    row_number() over (
        partition by level, recipe
        order by db_lost desc nulls last, worst_db_lost desc nulls last, worst_scale_gap_bits desc, layer, tensor
    ) as place,
    recipe, fmt, layer, tensor, source,
    criteria_list(by_gap, by_underflow, by_overflow, by_gain, by_sqnr) as criteria,
    first_step, last_step,
    n_hit_steps, n_observed_steps, n_gap_hit_steps, n_gap_steps, db_lost, worst_db_lost, healthy_sqnr_db,
    sqnr_db, worst_sqnr_db, sqnr_low_db, worst_sqnr_low_db, gain, worst_gain, underflow, worst_underflow,
    underflow_low, overflow, worst_overflow, scale_gap_bits, worst_scale_gap_bits, scale_is_frozen,
    reason(
        tensor, by_gap, by_underflow, by_gain, by_sqnr, scale_gap_bits, underflow, underflow_low, overflow, gain,
        sqnr_db, sqnr_low_db, healthy_sqnr_db, scale_is_frozen, min_scale
    ) || coalesce('; ' || ranks, '')
    || case level when 'watch' then '; effect on the loss unknown' else '' end as reason
from (
    select *, bool_or(level = 'hit' and is_persistent) over (partition by recipe, fmt, layer, tensor) as is_candidate
    from operands
)
left join worst_ranks using (recipe, fmt, layer, tensor)
where is_persistent and (level = 'hit' or not is_candidate);
