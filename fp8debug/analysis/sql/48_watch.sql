-- Operands that look unusual but are no candidates: effect on the loss unknown.
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
create or replace view watch as
select * exclude (level)
from verdicts
where level = 'watch'
order by recipe, place;
