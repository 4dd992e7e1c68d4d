-- The scales that records are judged under: those recorded; in a run of several ranks the group's in their place.
-- Internal.
-- sets_amax: whether the record has the largest amax of its group
-- n_group_nonzero: finite non-zero elements of that group; NULL where there is none
create or replace view judged_scales as
select *, true as sets_amax, null::bigint as n_group_nonzero
from stored.scales;
