-- What the rules judge: one row a record, recipe and format, with the criteria it meets; what proves nothing is absent.
-- Left out: evaluation and recomputed passes, records with few non-zeros, the first rolls of simulated delayed scaling,
-- formats other than E4M3 and E5M2, FNUZ or not, for which there are no limits.
-- series: sampled: all criteria, from the error sums | gap: the scale gap alone, at every pass that has one
-- sqnr_floor: SQNR that rounding alone can give at worst, dB
-- hit_sqnr: SQNR below what rounding alone can give
-- hit_gain: values come back too large or too small by more than rounding can make them
-- hit_gap: scale more bits above that of current scaling than allowed: the largest values are clipped
-- channel_db: SQNR of the median channel, dB, where many values become zero and channels were recorded
-- hit_underflow: many values become zero, and the small values or the median channel keep less than rounding leaves
-- watch_sqnr: SQNR clearly below the format's baseline
-- watch_gap: scale somewhat above that of current scaling
-- watch_underflow: many values become zero
-- watch_overflow: values are clipped
create or replace view evidence as
with judged as (
    select 'sampled' as series, * from sampled_evidence
    union all by name
    select
        'gap' as series, segment, step, microbatch, call, pass, rank, layer, tensor, seq,
        recipe, fmt, alternate, source, n_nonzero, n_rolls, true as is_stateful, scale, amax, scale_gap_bits,
        baseline_db(fmt) as healthy_sqnr_db
    from scale_gaps
    where scale_gap_bits is not null
)
select
    * exclude (is_stateful, n_rolls),
    is_sqnr_hit(sqnr_db, fmt) as hit_sqnr,
    is_gain_hit(gain, fmt) as hit_gain,
    is_gap_hit(scale_gap_bits) as hit_gap,
    is_underflow_hit(underflow, sqnr_low_db, channel_db, fmt) as hit_underflow,
    coalesce(sqnr_db < healthy_sqnr_db - getvariable('watch_sqnr_loss_db'), false) as watch_sqnr,
    coalesce(scale_gap_bits > getvariable('watch_gap_bits'), false) as watch_gap,
    coalesce(underflow > getvariable('watch_underflow'), false) as watch_underflow,
    coalesce(overflow > getvariable('watch_overflow'), false) as watch_overflow
from (select *, sqnr_floor_db(fmt) as sqnr_floor from judged)
where is_judged_pass(pass)
  and healthy_sqnr_db is not null
  and n_nonzero >= getvariable('min_nonzero')
  and not (is_stateful and source = 'simulated' and n_rolls < getvariable('warmup_rolls'));
