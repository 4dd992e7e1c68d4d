-- One row a record and stateful recipe: the scale in force when the record was taken.
create or replace view scales as
select * from stored.scales semi join last_segments using (step, segment);
