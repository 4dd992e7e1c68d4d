-- One row an operand, step and level: the worst of its judged records. Alternate formats are left out.
-- Internal.
-- A table: computed once, when it is first named.
-- level: hit: the candidate rule | watch: the weaker criteria of the watch list
-- is_sampled: error sums were taken in this step
-- has_gap: the scale gap is known in this step
-- is_hit: a sampled record meets a criterion
-- is_gap_hit: the scale gap of some pass is too large
create or replace temp table operand_steps as
with leveled as (
    select
        * exclude (alternate),
        case level when 'hit' then hit_sqnr else watch_sqnr end as by_sqnr,
        level = 'hit' and hit_gain as by_gain,
        case level when 'hit' then hit_gap else watch_gap end as by_gap,
        case level when 'hit' then hit_underflow else watch_underflow end as by_underflow,
        level = 'watch' and watch_overflow as by_overflow
    from evidence, (values ('hit'), ('watch')) as levels(level)
    where not alternate
)
select
    level, recipe, fmt, layer, tensor, step, any_value(source) as source, any_value(healthy_sqnr_db) as healthy_sqnr_db,
    bool_or(series = 'sampled') as is_sampled,
    bool_or(series = 'gap') as has_gap,
    bool_or(series = 'sampled' and (by_sqnr or by_gain or by_gap or by_underflow or by_overflow)) as is_hit,
    bool_or(series = 'gap' and by_gap) as is_gap_hit,
    bool_or(by_sqnr) as by_sqnr, bool_or(by_gain) as by_gain, bool_or(by_gap) as by_gap,
    bool_or(by_underflow) as by_underflow, bool_or(by_overflow) as by_overflow,
    min(sqnr_db) as sqnr_db, min(sqnr_low_db) as sqnr_low_db, arg_max(gain, abs(gain - 1)) as gain,
    max(underflow) as underflow, max(underflow_low) as underflow_low, max(overflow) as overflow,
    arg_max(scale_gap_bits, abs(scale_gap_bits)) as scale_gap_bits, max(db_lost) as db_lost,
    min(scale) as min_scale, max(scale) as max_scale, min(amax) as min_amax, max(amax) as max_amax
from leveled
group by level, recipe, fmt, layer, tensor, step;
