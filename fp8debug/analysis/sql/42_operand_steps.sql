-- One row an operand and step: the worst of its judged records; level is 'hit' (candidates) or 'watch'.
create or replace macro operand_steps(level) as table
with leveled as (
    select
        * exclude (hit_sqnr, hit_gain, hit_gap, hit_underflow, watch_sqnr, watch_gap, watch_underflow, watch_overflow),
        case level when 'hit' then hit_sqnr else watch_sqnr end as by_sqnr,
        case level when 'hit' then hit_gain else false end as by_gain,
        case level when 'hit' then hit_gap else watch_gap end as by_gap,
        case level when 'hit' then hit_underflow else watch_underflow end as by_underflow,
        case level when 'hit' then false else watch_overflow end as by_overflow
    from evidence
    where not alternate
)
select
    recipe, fmt, layer, tensor, step, any_value(source) as source, any_value(healthy_sqnr_db) as healthy_sqnr_db,
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
group by recipe, fmt, layer, tensor, step;
