-- How an operand fared in one step under a recipe: the worst over its records of all micro-batches, calls and ranks.
-- Evaluation and recomputed passes are left out. Errors are of sampled steps, the scale gap of all that have one.
-- Of recipes that scale blocks, the worse of the two orientations.
-- amax: largest magnitude of the finite elements
-- underflow: share of the non-zero values that become zero: the largest
-- overflow: share of the elements beyond the largest finite value of the format: the largest
-- sqnr_db: signal to quantisation noise, dB: the smallest; NULL where it has no number
-- sqnr_low_db: the same over the smallest 99 % of the non-zero values
-- exact: true when quantisation changed nothing in any of them
-- gain: factor by which the values come back: the one farthest from 1
-- scale_gap_bits: log2(scale / current_scale): the largest where that clips (> 0), else the smallest
-- scale: scale in force at the record with the largest amax; NULL where it has several
-- current_scale: scale that current scaling would give that record
-- healthy_sqnr_db: SQNR of bell-shaped tensors at a perfect scale in this format
create or replace view operand_steps as
with seen as (
    select
        layer, tensor, recipe, fmt, alternate, step, amax, underflow, overflow, sqnr_db, sqnr_low_db, exact, gain,
        scale_gap_bits, scale, current_scale
    from layer_records
    union all by name
    select layer, tensor, recipe, fmt, alternate, step, amax, scale_gap_bits, scale, current_scale
    from scale_gaps
    where is_judged_pass(pass)
    union all by name
    select layer, tensor, recipe, fmt, alternate, step, amax, underflow, overflow, sqnr_db, exact, gain
    from block_errors
    where is_judged_pass(pass)
)
select
    layer, tensor, recipe, fmt, alternate, step,
    max(amax) as amax, max(underflow) as underflow, max(overflow) as overflow,
    min(sqnr_db) as sqnr_db, min(sqnr_low_db) as sqnr_low_db, bool_and(exact) as exact,
    arg_max(gain, abs(gain - 1)) as gain,
    case when max(scale_gap_bits) > 0 then max(scale_gap_bits) else min(scale_gap_bits) end as scale_gap_bits,
    arg_max(scale, amax) as scale, arg_max(current_scale, amax) as current_scale,
    baseline_db(fmt) as healthy_sqnr_db
from seen
group by layer, tensor, recipe, fmt, alternate, step;
