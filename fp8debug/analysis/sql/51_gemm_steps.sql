-- Sampled: how the result of a GEMM fared in one step under a recipe: the worst over its records.
-- Evaluation passes are left out.
-- Results added up exactly; where only another accumulation was measured, that one.
-- other_fmt: element format of the second operand
-- rel_l2: relative L2 error: the largest
-- sqnr_db: signal to noise of the result, dB: the smallest; NULL where it has no number
-- product_sqnr_db: the same against the sum of (a*b)^2: a result that cancels is small beside it
-- better_sqnr_db: the higher of the two of one record: the smallest; low only where rounding does not explain the error
-- exact: true when quantisation changed nothing in any of them
create or replace view gemm_steps as
select
    layer, gemm, recipe, fmt, other_fmt, alternate, step, accumulation,
    max(rel_l2) as rel_l2, min(sqnr_db) as sqnr_db, min(product_sqnr_db) as product_sqnr_db,
    min(greatest(sqnr_db, product_sqnr_db)) as better_sqnr_db, bool_and(exact) as exact
from gemm_errors
where is_judged_pass(pass)
group by layer, gemm, recipe, fmt, other_fmt, alternate, step, accumulation
qualify accumulation = min(accumulation) over (partition by layer, gemm, recipe, fmt, other_fmt, alternate, step);
