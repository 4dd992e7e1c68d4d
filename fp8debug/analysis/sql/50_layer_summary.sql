-- One row an operand, recipe and format over the whole run, evaluation and recomputed passes left out.
-- n_steps: steps in which it was sampled
-- n_records: sampled records
-- sqnr_db: median over records
-- worst_sqnr_db: smallest over records
-- sqnr_low_db: median over records, of the smallest 99 % of the non-zero values
-- underflow: median over records
-- overflow: median over records
-- scale_gap_bits: median over records
-- amax: largest over records
-- db_lost: median over records
-- first_step: first sampled step
-- last_step: last sampled step
-- worst_sqnr_low_db: smallest over records
-- rel_l2: median over records
-- cosine: median over records
-- gain: median over records; 1 is right
-- worst_underflow: largest over records
-- worst_overflow: largest over records
-- max_scale_gap_bits: largest over records
-- amin: smallest over records
-- worst_db_lost: largest over records
create or replace view layer_summary as
select
    recipe, fmt, alternate, layer, tensor, any_value(source) as source,
    count(distinct step) as n_steps, count(*) as n_records, min(step) as first_step, max(step) as last_step,
    median(sqnr_db) as sqnr_db, min(sqnr_db) as worst_sqnr_db,
    median(sqnr_low_db) as sqnr_low_db, min(sqnr_low_db) as worst_sqnr_low_db,
    median(rel_l2) as rel_l2, median(cosine) as cosine, median(gain) as gain,
    median(underflow) as underflow, max(underflow) as worst_underflow,
    median(overflow) as overflow, max(overflow) as worst_overflow,
    median(scale_gap_bits) as scale_gap_bits, max(scale_gap_bits) as max_scale_gap_bits,
    min(amin) as amin, max(amax) as amax,
    median(db_lost) as db_lost, max(db_lost) as worst_db_lost, any_value(healthy_sqnr_db) as healthy_sqnr_db
from layer_records
group by recipe, fmt, alternate, layer, tensor;
