-- Sampled: every error metric of the whole tensor, over ranks: one row a pass, recipe and format.
-- scale_scope: record: each piece under its own scale | group: all under the group's, replayed over ranks | rank
-- scale: the one scale of all pieces; NULL where they have several
-- n_shards: distinct pieces merged
-- worst_rank: rank whose piece has the lowest SQNR
-- worst_rank_sqnr_db: its SQNR, dB
-- mse: mean squared error, in the square of the tensor's unit: never a rule by itself
-- sqnr_db: signal to quantisation noise, dB; NULL when all is zero or when nothing was lost (exact)
-- sqnr_low_db: the same over the smallest 99 % of each piece's non-zero values
-- rel_l2: relative L2 error
-- cosine: blind to a wrong scale, read it with gain
-- gain: factor by which the values come back; 1 is right
-- underflow: share of the non-zero values that become zero
-- underflow_low: the same over the smallest 99 % of each piece's non-zero values
-- overflow: share of the elements beyond the largest finite value of the format
-- exact: true when quantisation changed nothing
-- amax: largest magnitude of any piece
-- amin: smallest non-zero magnitude of any piece
-- current_scale: scale that current scaling would give the whole tensor
-- scale_gap_bits: log2(scale / current_scale) where the pieces share a scale: > 0 clips, < 0 wastes range
-- n_rolls: amaxes that the group's history has consumed; NULL without one
-- healthy_sqnr_db: SQNR of bell-shaped tensors at a perfect scale in this format
-- db_lost: how far sqnr_db, or sqnr_low_db when that is lower, is below healthy_sqnr_db
create or replace view merged_error_ratios as
with whole as (
    select
        segment, step, microbatch, call, pass, layer, tensor, min(amin) as amin, max(amax) as amax,
        sum(n_posinf) as n_posinf, sum(n_neginf) as n_neginf, max(approx) as approx
    from shards
    where sampled
    group by segment, step, microbatch, call, pass, layer, tensor
)
select
    segment, step, microbatch, call, pass, layer, tensor, e.recipe, e.fmt, e.alternate, e.source, e.scale_scope,
    e.n_shards, e.n, e.n_nonzero, e.worst_rank, e.worst_rank_sqnr_db,
    mse(e.sum_err2, e.n) as mse,
    sqnr_db(e.sum_x2, e.sum_err2) as sqnr_db,
    sqnr_db(e.low_sum_x2, e.low_sum_err2) as sqnr_low_db,
    rel_l2(e.sum_x2, e.sum_err2) as rel_l2,
    cosine(e.sum_xq, e.sum_x2, e.sum_q2) as cosine,
    gain(e.sum_xq, e.sum_x2) as gain,
    ratio(e.n_underflow, e.n_nonzero) as underflow,
    ratio(least(e.n_underflow, e.n_low), e.n_low) as underflow_low,
    ratio(e.n_overflow, e.n) as overflow,
    is_exact(e.sum_err2) as exact,
    t.amin, t.amax, e.scale,
    current_scale(kernel_amax(t.amax, t.n_posinf, t.n_neginf), e.fmt) as current_scale,
    case when coalesce(g.status, 'ok') = 'ok' then gap_bits(e.scale, kernel_amax(t.amax, t.n_posinf, t.n_neginf), e.fmt)
    end as scale_gap_bits,
    g.n_rolls,
    baseline_db(e.fmt) as healthy_sqnr_db,
    greatest(0, healthy_sqnr_db - least(sqnr_db, sqnr_low_db)) as db_lost,
    coalesce(t.approx, e.approx) as approx
from merged_errors as e
join whole as t using (segment, step, microbatch, call, pass, layer, tensor)
left join group_scales as g using (segment, step, microbatch, call, pass, layer, tensor, recipe, fmt);
