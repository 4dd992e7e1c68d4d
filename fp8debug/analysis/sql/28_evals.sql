-- One row a benchmark score that the training gave, task by task.
create or replace view evals as
select * from stored.evals;
