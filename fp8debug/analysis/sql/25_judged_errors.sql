-- The error sums that are judged: those recorded; in a run of several ranks those under the group's scale instead.
-- Internal.
create or replace view judged_errors as
select * from stored.errors;
