-- Sampled: one row a record, axis and measure: counts of channels in fixed bins, which add up over records.
create or replace view channels as
select * from stored.channels semi join last_segments using (step, segment);
