-- Every record that the rules judge, each rank by itself, and where ranks share a scale their group as a whole.
-- A fault on one rank must not be averaged away, and pieces too small to be judged alone may prove something together.
-- rank and seq: NULL for a group
create or replace temp table sampled_evidence as
with judged as (
    select
        segment, step, microbatch, call, pass, rank, layer, tensor, seq,
        recipe, fmt, alternate, source, n_nonzero, n_rolls, is_stateful, scale, amax, scale_gap_bits,
        sqnr_db, sqnr_low_db, channel_db, gain, underflow, underflow_low, overflow, healthy_sqnr_db,
        greatest(db_lost, healthy_sqnr_db - channel_db) as db_lost
    from error_ratios
    left join median_channels using (segment, rank, seq, recipe, fmt)
    union all by name
    select
        segment, step, microbatch, call, pass, layer, tensor,
        recipe, fmt, alternate, source, n_nonzero, n_rolls, n_rolls is not null as is_stateful, scale, amax,
        scale_gap_bits, sqnr_db, sqnr_low_db, gain, underflow, underflow_low, overflow, healthy_sqnr_db, db_lost
    from merged_error_ratios
    where scale_scope = 'group' and n_shards > 1
)
from judged
where is_judged_pass(pass)
  and healthy_sqnr_db is not null
  and n_nonzero >= getvariable('min_nonzero')
  and not (is_stateful and source = 'simulated' and n_rolls < getvariable('warmup_rolls'));
