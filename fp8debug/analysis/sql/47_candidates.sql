-- Operands that should fall back to BF16 under a recipe: criteria met in at least 3 steps and 5 % of the observed ones.
-- place: in the list of this recipe, by dB lost: median over the steps that hit, then the worst
-- n_hit_steps: sampled steps that meet a criterion
-- n_observed_steps: sampled steps that were judged
-- n_gap_hit_steps: steps whose scale gap is too large, unsampled steps included
-- n_gap_steps: steps that have a scale gap, unsampled steps included
-- criteria: criteria met in any step
-- first_step: first step that hits
-- last_step: last step that hits
-- worst_db_lost: largest over the judged steps
-- sqnr_db: signal to quantisation noise, dB: median over the steps that hit, as all values without worst_
-- worst_sqnr_db: smallest over the judged steps
-- sqnr_low_db: SQNR of the smallest 99 % of the non-zero values, dB
-- worst_sqnr_low_db: smallest over the judged steps
-- gain: factor by which the values come back; 1 is right
-- worst_gain: farthest from 1 over the judged steps
-- underflow: share of the non-zero values that become zero
-- worst_underflow: largest over the judged steps
-- underflow_low: the same over the smallest 99 % of the non-zero values
-- overflow: share of the elements beyond the largest finite value of the format
-- worst_overflow: largest over the judged steps
-- scale_gap_bits: log2(scale / current_scale): > 0 clips, < 0 wastes range
-- worst_scale_gap_bits: farthest from 0 over the judged steps
-- scale_is_frozen: the scale never changed although the tensor did
-- healthy_sqnr_db: SQNR of bell-shaped tensors at a perfect scale in this format
-- db_lost: how far sqnr_db, or sqnr_low_db when that is lower, is below healthy_sqnr_db
-- reason: why it is listed, in words
create or replace view candidates as
select
    row_number() over (
        partition by recipe
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
    ) as reason
from operands
where level = 'hit' and is_persistent
order by recipe, place;
