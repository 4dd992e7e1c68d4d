-- Error sums of each record under the delayed scale of its group; in a run of several ranks only.
-- Internal.
-- A table: computed once, when it is first named.
create or replace temp table group_sums as
select * from stored.errors where false;
