-- One row a step and rank: loss, gradient norm and learning rate as the training reported them.
create or replace view steps as
select * from stored.steps semi join last_segments using (step, segment);
