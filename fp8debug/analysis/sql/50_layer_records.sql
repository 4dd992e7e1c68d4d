-- What layer_summary sums up: one row a record, recipe and format; in a run of several ranks one a group.
-- Internal.
create or replace view layer_records as
select * from error_ratios where is_judged_pass(pass);
