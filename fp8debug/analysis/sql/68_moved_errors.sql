-- Recorded error sums that belong to another scale than that of their group; in a run of several ranks only.
-- Internal.
-- A table: computed once, when it is first named.
create or replace temp table moved_errors as
select null::int as id, *, null::float as group_scale, null::varchar as counted_approx
from stored.errors
where false;
