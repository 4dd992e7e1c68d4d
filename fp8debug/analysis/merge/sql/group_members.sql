-- The records of each reduction group; those that are merged with nothing have no id; redundant replicas are in none.
create or replace temp table group_members as
with grouped as (
    select id, segment, unnest(members, recursive := true) from group_passes
)
select segment, rank, seq, id from grouped
union all
select segment, rank, seq, null as id
from (
    select segment, rank, seq from tensors where contains(placement, 'partial')
    union all
    select segment, rank, seq from shards
)
anti join grouped using (segment, rank, seq);
