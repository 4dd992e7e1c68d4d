-- Sampled: one row a weight that a GEMM read in low precision: value and code at the same fixed positions every time.
create or replace view wsample as
select * from stored.wsample semi join last_segments using (step, segment);
