-- One row a record: the health of one tensor at one pass.
create or replace view tensors as
select * from stored.tensors semi join last_segments using (step, segment);
