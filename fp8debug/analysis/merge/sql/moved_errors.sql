-- Recorded error sums under simulated delayed scaling whose rank had another scale in force than the group has.
create or replace temp table moved_errors as
select (row_number() over ())::int as id, e.*, r.scale as group_scale, t.approx as counted_approx
from stored.errors as e
join group_members as m using (segment, rank, seq)
join group_replay as r using (id, recipe, fmt)
join tensors as t using (segment, rank, seq)
where e.source = 'simulated' and r.scale is not null and e.scale is distinct from r.scale;
