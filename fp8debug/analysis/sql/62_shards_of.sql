-- Which of records stands for each distinct piece of a tensor: one replica a shard, partial sums left out.
-- Internal.
-- records names a relation with the columns of tensors.
create or replace macro shards_of(records) as table
with pieces as (
    select *, coalesce(replica_of, rank) as owner
    from query_table(records)
    where placement is null or not contains(placement, 'partial')
),
owners as (
    select * from pieces where rank = owner
),
strays as (
    select *
    from pieces
    anti join owners using (segment, step, microbatch, call, pass, layer, tensor, owner)
    where rank <> owner
    qualify rank = min(rank) over (
        partition by segment, step, microbatch, call, pass, layer, tensor, owner
    )
)
from owners
union all
from strays;
