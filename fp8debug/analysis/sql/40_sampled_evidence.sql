-- Sampled records that the rules judge, with their error metrics: the sampled half of evidence.
-- Internal.
-- A table: computed once, when it is first named.
create or replace temp table sampled_evidence as
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq,
    recipe, fmt, alternate, source, n_nonzero, n_rolls, is_stateful, scale, amax, scale_gap_bits,
    sqnr_db, sqnr_low_db, channel_db, gain, underflow, underflow_low, overflow, healthy_sqnr_db,
    greatest(db_lost, healthy_sqnr_db - channel_db) as db_lost
from error_ratios
left join median_channels using (segment, rank, seq, recipe, fmt)
where is_judged_pass(pass)
  and healthy_sqnr_db is not null
  and n_nonzero >= getvariable('min_nonzero')
  and not (is_stateful and source = 'simulated' and n_rolls < getvariable('warmup_rolls'));
