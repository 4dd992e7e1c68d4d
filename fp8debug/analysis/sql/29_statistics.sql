-- Imported: one row a number that another tool has logged of a tensor, as it gave it.
create or replace view statistics as
select * from stored.statistics semi join last_segments using (step, segment);
