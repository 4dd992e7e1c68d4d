-- Opt-in raw tensors: one row a tensor row, its elements as FLOAT[].
create or replace view "values" as
select * from stored."values" semi join last_segments using (step, segment);
