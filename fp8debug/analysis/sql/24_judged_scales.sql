-- The scales that records are judged under: those recorded; in a run of several ranks the group's in their place.
-- Internal.
-- sets_amax: whether the record has the largest amax of its group
create or replace view judged_scales as
select *, true as sets_amax
from stored.scales;
