-- The part of tensor_errors that needs no other recipe's scale: one row a record, recipe and format.
-- Internal.
-- mse: mean squared error, in the square of the tensor's unit: never a rule by itself
-- sqnr_db: signal to quantisation noise, dB; NULL when all is zero or when nothing was lost (exact)
-- sqnr_low_db: the same over the smallest 99 % of the non-zero values: what is left when a few outliers set the scale
-- rel_l2: relative L2 error
-- cosine: blind to a wrong scale, read it with gain
-- gain: factor by which the values come back; 1 is right
-- underflow: share of the non-zero values that become zero
-- underflow_low: the same over the smallest 99 % of the non-zero values
-- underflow_all: values that become zero as a share of all elements
-- overflow: share of the elements beyond the largest finite value of the format
-- exact: true when quantisation changed nothing
-- amin: smallest non-zero magnitude of the finite elements
-- amax: largest magnitude of the finite elements
-- scale: scale in force, the one these numbers belong to
-- current_scale: scale that current scaling gives this record in the same format
-- scale_gap_bits: log2(scale / current_scale): > 0 clips, < 0 wastes range
-- n_rolls: amaxes that the recipe's history has consumed; NULL without a history
-- healthy_sqnr_db: SQNR of bell-shaped tensors at a perfect scale in this format
-- db_lost: how far sqnr_db, or sqnr_low_db when that is lower, is below healthy_sqnr_db
-- is_stateful: whether the recipe has a history
-- approx: 'bf16' when sqnr_low_db or the histogram is of BF16-rounded FP32 values, else NULL
create or replace view error_ratios as
select
    e.segment, t.step, t.microbatch, t.call, t.pass, e.rank, t.layer, t.tensor, e.seq,
    e.recipe, e.fmt, e.alternate, e.source, e.scale_scope, e.n, e.n_nonzero,
    mse(e.sum_err2, e.n) as mse,
    sqnr_db(e.sum_x2, e.sum_err2) as sqnr_db,
    sqnr_db(e.low_sum_x2, e.low_sum_err2) as sqnr_low_db,
    rel_l2(e.sum_x2, e.sum_err2) as rel_l2,
    cosine(e.sum_xq, e.sum_x2, e.sum_q2) as cosine,
    gain(e.sum_xq, e.sum_x2) as gain,
    ratio(e.n_underflow, e.n_nonzero) as underflow,
    ratio(least(e.n_underflow, e.n_low), e.n_low) as underflow_low,
    ratio(e.n_underflow, e.n) as underflow_all,
    ratio(e.n_overflow, e.n) as overflow,
    is_exact(e.sum_err2) as exact,
    t.amin, t.amax, e.scale,
    current_scale(kernel_amax(t.amax, t.n_posinf, t.n_neginf), e.fmt) as current_scale,
    case
        when coalesce(s.status, 'ok') = 'ok' then gap_bits(e.scale, kernel_amax(t.amax, t.n_posinf, t.n_neginf), e.fmt)
    end as scale_gap_bits,
    s.scale is not null as is_stateful, s.n_rolls, coalesce(s.set_at_step, static_set_at(e.recipe)) as set_at_step,
    baseline_db(e.fmt) as healthy_sqnr_db,
    greatest(0, healthy_sqnr_db - least(sqnr_db, sqnr_low_db)) as db_lost,
    coalesce(t.approx, e.approx) as approx
from judged_errors as e
join tensors as t using (segment, rank, seq)
left join judged_scales as s using (segment, rank, seq, recipe, fmt)
where e.source <> 'payload';
