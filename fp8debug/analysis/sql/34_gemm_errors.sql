-- Sampled: one row a GEMM, recipe and accumulation with the error of the result, on the sample the row names.
-- rel_l2: relative L2 error of the result
-- sqnr_db: signal to noise of the result, dB; NULL when it is all zero or when nothing was lost (exact)
-- product_sqnr_db: the same against the sum of (a*b)^2: what sqnr_db would be if the products did not cancel
-- cancellation_db: product_sqnr_db - sqnr_db: how far the result is below its products; much of it is no fault of FP8
-- cosine: blind to a wrong scale, read it with gain
-- gain: factor by which the results come back; 1 is right
-- exact: true when quantisation changed nothing
create or replace view gemm_errors as
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq,
    gemm, recipe, fmt, other_fmt, alternate, accumulation, sample, n_rows, n_columns, depth, n, n_nonfinite,
    rel_l2(sum_y2, sum_err2) as rel_l2,
    sqnr_db(sum_y2, sum_err2) as sqnr_db,
    decibel(sum_x2w2, sum_err2) as product_sqnr_db,
    decibel(sum_x2w2, sum_y2) as cancellation_db,
    cosine(sum_yq, sum_y2, sum_q2) as cosine,
    gain(sum_yq, sum_y2) as gain,
    is_exact(sum_err2) as exact
from stored.gemms
semi join last_segments using (step, segment);
