-- Sampled: one row a record, recipe and format with the sums of squares; ratios are in tensor_errors.
create or replace view errors as
select * from stored.errors semi join tensors using (segment, rank, seq);
