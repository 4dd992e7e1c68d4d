-- One row an operand and level with criteria met in any step: how often, and typical and worst values of those records.
-- Internal.
-- A table: computed once, when it is first named.
-- The error criteria are counted over sampled steps, the gap also over all steps that have one; either suffices.
-- Typical values are medians over the records that hit: one spike does not set them, healthy steps do not dilute them.
-- is_persistent: the criteria are met in enough steps of either series
create or replace temp table operands as
with levels as (
    select unnest(['hit', 'watch']) as level
),
sampled as (
    select * from evidence where series = 'sampled' and not alternate
),
observed as (
    select
        recipe, fmt, layer, tensor, any_value(source) as source, count(distinct step) as n_observed_steps,
        min(sqnr_db) as worst_sqnr_db, min(sqnr_low_db) as worst_sqnr_low_db,
        arg_max(gain, abs(gain - 1)) as worst_gain, max(underflow) as worst_underflow, max(overflow) as worst_overflow,
        arg_max(scale_gap_bits, abs(scale_gap_bits)) as worst_bits, max(db_lost) as worst_db_lost,
        stayed_off(
            n_observed_steps, min(scale), max(scale), min(amax), max(amax), min(scale_gap_bits), max(scale_gap_bits)
        ) as is_frozen,
        min(scale) as min_scale
    from sampled
    group by recipe, fmt, layer, tensor
),
hitting as (
    select
        *,
        case level when 'hit' then hit_sqnr else watch_sqnr end as by_sqnr,
        level = 'hit' and hit_gain as by_gain,
        case level when 'hit' then hit_gap else watch_gap end as by_gap,
        case level when 'hit' then hit_underflow else watch_underflow end as by_underflow,
        level = 'watch' and watch_overflow as by_overflow
    from sampled, levels
    where by_sqnr or by_gain or by_gap or by_underflow or by_overflow
),
hits_of as (
    select
        level, recipe, fmt, layer, tensor, count(distinct step) as n_hit_steps,
        min(step) as first_step, max(step) as last_step,
        bool_or(by_gap) as by_gap, bool_or(by_underflow) as by_underflow, bool_or(by_overflow) as by_overflow,
        bool_or(by_gain) as by_gain, bool_or(by_sqnr) as by_sqnr,
        median(sqnr_db) as sqnr_db, median(sqnr_low_db) as sqnr_low_db, median(gain) as gain,
        median(underflow) as underflow, median(underflow_low) as underflow_low, median(overflow) as overflow,
        median(scale_gap_bits) as bits, median(db_lost) as db_lost
    from hitting
    group by level, recipe, fmt, layer, tensor
),
gaps as (
    -- Of each step only what hits is kept: the rest of a million records would be grouped a second time for nothing.
    select
        recipe, fmt, layer, tensor, any_value(source) as source, count(distinct step) as n_gap_steps,
        list({step: step, bits: scale_gap_bits, level: 'hit'}) filter (hit_gap) as hits,
        list({step: step, bits: scale_gap_bits, level: 'watch'}) filter (watch_gap) as watched,
        case
            when max(scale_gap_bits) >= -min(scale_gap_bits) then max(scale_gap_bits) else min(scale_gap_bits)
        end as worst_bits,
        stayed_off(
            n_gap_steps, min(scale), max(scale), min(amax), max(amax), min(scale_gap_bits), max(scale_gap_bits)
        ) as is_frozen,
        min(scale) as min_scale
    from evidence
    where series = 'gap' and not alternate
    group by recipe, fmt, layer, tensor
),
gap_hits_of as (
    select
        level, recipe, fmt, layer, tensor, count(*) as n_gap_hit_steps, min(step) as first_step,
        max(step) as last_step, median(bits) as bits
    from (
        select recipe, fmt, layer, tensor, hit.level as level, hit.step as step, max(hit.bits) as bits
        from (
            select recipe, fmt, layer, tensor, unnest(list_concat(hits, watched)) as hit
            from gaps
        )
        group by all
    )
    group by level, recipe, fmt, layer, tensor
)
select
    level, recipe, fmt, layer, tensor, coalesce(o.source, g.source) as source,
    coalesce(h.n_hit_steps, 0) as n_hit_steps, coalesce(o.n_observed_steps, 0) as n_observed_steps,
    coalesce(gh.n_gap_hit_steps, 0) as n_gap_hit_steps, coalesce(g.n_gap_steps, 0) as n_gap_steps,
    coalesce(is_persistent(h.n_hit_steps, o.n_observed_steps), false)
    or coalesce(is_persistent(gh.n_gap_hit_steps, g.n_gap_steps), false) as is_persistent,
    least(h.first_step, gh.first_step) as first_step, greatest(h.last_step, gh.last_step) as last_step,
    coalesce(by_gap, false) or gh.n_gap_hit_steps is not null as by_gap,
    coalesce(by_underflow, false) as by_underflow, coalesce(by_overflow, false) as by_overflow,
    coalesce(by_gain, false) as by_gain, coalesce(by_sqnr, false) as by_sqnr,
    sqnr_db, worst_sqnr_db, sqnr_low_db, worst_sqnr_low_db, gain, worst_gain, underflow, worst_underflow,
    underflow_low, overflow, worst_overflow, coalesce(h.bits, gh.bits) as scale_gap_bits,
    coalesce(g.worst_bits, o.worst_bits) as worst_scale_gap_bits,
    baseline_db(fmt) as healthy_sqnr_db,
    db_lost, worst_db_lost, coalesce(g.is_frozen, o.is_frozen) as scale_is_frozen,
    coalesce(g.min_scale, o.min_scale) as min_scale
from hits_of as h
full join gap_hits_of as gh using (level, recipe, fmt, layer, tensor)
left join observed as o using (recipe, fmt, layer, tensor)
left join gaps as g using (recipe, fmt, layer, tensor);
