-- Sampled: one row a GEMM, recipe and accumulation with the sums of squares of its result; ratios are in gemm_errors.
create or replace view gemms as
select * from stored.gemms semi join last_segments using (step, segment);
