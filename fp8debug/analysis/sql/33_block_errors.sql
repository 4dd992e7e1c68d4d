-- Sampled: one row a record, block recipe, format and GEMM with every error metric of the operand, and its scales.
-- amax: largest magnitude of the tensor's finite elements
-- mse: mean squared error, in the square of the tensor's unit
-- sqnr_db: signal to quantisation noise, dB; NULL when all is zero or when nothing was lost (exact)
-- rel_l2: relative L2 error
-- cosine: blind to a wrong scale, read it with gain
-- gain: factor by which the values come back; 1 is right
-- underflow: share of the non-zero values that become zero
-- overflow: share of the elements beyond the largest finite value of the format
-- exact: true when quantisation changed nothing
-- saturated: share of the scaled blocks in which at least one element overflows
-- n_scaled_blocks: blocks that have a scale: neither all zero nor with a NaN or Inf
-- scale_range_bits: log2(scale_max / scale_min): how much one scale for the tensor would have to cover
create or replace view block_errors as
select
    b.segment, b.step, b.microbatch, b.call, b.pass, b.rank, b.layer, b.tensor, b.seq,
    b.recipe, b.fmt, b.alternate, b.orientation, b.gemm, b.sample, b.n_total, b.n, b.n_nonzero, t.amax,
    mse(b.sum_err2, b.n) as mse,
    sqnr_db(b.sum_x2, b.sum_err2) as sqnr_db,
    rel_l2(b.sum_x2, b.sum_err2) as rel_l2,
    cosine(b.sum_xq, b.sum_x2, b.sum_q2) as cosine,
    gain(b.sum_xq, b.sum_x2) as gain,
    ratio(b.n_underflow, b.n_nonzero) as underflow,
    ratio(b.n_overflow, b.n) as overflow,
    is_exact(b.sum_err2) as exact,
    b.n_blocks, b.n_blocks - b.n_zero_blocks - b.n_nonfinite_blocks as n_scaled_blocks,
    ratio(b.n_saturated_blocks, n_scaled_blocks) as saturated,
    b.n_zero_blocks, b.n_nonfinite_blocks, b.n_saturated_blocks, b.scale_min, b.scale_median, b.scale_max,
    case when b.scale_min > 0 and isfinite(b.scale_max) then log2(b.scale_max / b.scale_min::double) end
        as scale_range_bits,
    b.worst_block, b.worst_block_sqnr_db, coalesce(t.approx, b.approx) as approx
from stored.blocks as b
join tensors as t using (segment, rank, seq);
