-- Sampled: one row a record, block recipe, format and GEMM with the sums of squares; ratios are in block_errors.
create or replace view blocks as
select * from stored.blocks semi join last_segments using (step, segment);
