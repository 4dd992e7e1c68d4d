-- One row an operand and level with criteria met in any step: how often, and typical and worst values of those steps.
-- Internal.
-- The error criteria are counted over sampled steps, the gap also over all steps that have one; either suffices.
-- Typical values are medians over the steps that hit: one spike does not set them, healthy steps do not dilute them.
-- A table: computed once, when it is first named.
-- is_persistent: the criteria are met in enough steps of either series
create or replace temp table operands as
select
    level, recipe, fmt, layer, tensor, any_value(source) as source,
    count(*) filter (is_hit) as n_hit_steps, count(*) filter (is_sampled) as n_observed_steps,
    count(*) filter (is_gap_hit) as n_gap_hit_steps, count(*) filter (has_gap) as n_gap_steps,
    is_persistent(n_hit_steps, n_observed_steps) or is_persistent(n_gap_hit_steps, n_gap_steps) as is_persistent,
    min(step) filter (is_hit or is_gap_hit) as first_step, max(step) filter (is_hit or is_gap_hit) as last_step,
    bool_or(by_gap) as by_gap, bool_or(by_underflow) as by_underflow, bool_or(by_overflow) as by_overflow,
    bool_or(by_gain) as by_gain, bool_or(by_sqnr) as by_sqnr,
    median(sqnr_db) filter (is_hit or is_gap_hit) as sqnr_db, min(sqnr_db) as worst_sqnr_db,
    median(sqnr_low_db) filter (is_hit or is_gap_hit) as sqnr_low_db, min(sqnr_low_db) as worst_sqnr_low_db,
    median(gain) filter (is_hit or is_gap_hit) as gain, arg_max(gain, abs(gain - 1)) as worst_gain,
    median(underflow) filter (is_hit or is_gap_hit) as underflow, max(underflow) as worst_underflow,
    median(underflow_low) filter (is_hit or is_gap_hit) as underflow_low,
    median(overflow) filter (is_hit or is_gap_hit) as overflow, max(overflow) as worst_overflow,
    median(scale_gap_bits) filter (is_hit or is_gap_hit) as scale_gap_bits,
    arg_max(scale_gap_bits, abs(scale_gap_bits)) as worst_scale_gap_bits,
    any_value(healthy_sqnr_db) as healthy_sqnr_db,
    median(db_lost) filter (is_hit or is_gap_hit) as db_lost, max(db_lost) as worst_db_lost,
    min(min_scale) as min_scale, max(max_scale) as max_scale,
    count(*) > 1 and min(min_scale) = max(max_scale) and min(min_amax) < max(max_amax)
        and abs(median(scale_gap_bits)) > getvariable('gap_bits') as scale_is_frozen
from operand_steps
group by level, recipe, fmt, layer, tensor
having bool_or(is_hit or is_gap_hit);
