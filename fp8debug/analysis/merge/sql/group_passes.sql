-- One row a pass and tensor of a reduction group: the ranks that recorded the layer and tensor, one replica a shard.
-- An amax is unknown where a piece has none, and where all ranks that hold a piece recorded nothing in that step.
create or replace temp table group_passes as
with seen as (
    select
        segment, step, microbatch, call, pass, layer, tensor, rank, seq, sampled,
        case when n = 0 then 0 else kernel_amax(amax, n_posinf, n_neginf) end as amax,
        coalesce(n - n_zero - n_nan - n_posinf - n_neginf, n) as n_nonzero
    from shards_of('stored.all_tensors')
    where coalesce(row_class, 'all') = 'all' and not is_payload(dtype)
      and status in ('ok', 'empty', 'empty_shard', 'no_tokens')
),
-- A pass whose tensor nobody could see has scales and no record.
unseen as (
    select distinct segment, step, microbatch, call, pass, layer, tensor, rank, seq, false as sampled
    from stored.scales
    anti join stored.all_tensors using (segment, rank, seq)
),
piece as (
    from seen union all by name from unseen
),
present as (
    select distinct segment, step, rank from stored.all_tensors
),
silent as (
    select segment, step, rank
    from (select distinct segment, step from present)
    join (select distinct segment, rank from present) using (segment)
    anti join present using (segment, step, rank)
),
holders as (
    select distinct segment, layer, tensor, coalesce(replica_of, rank) as owner, rank
    from stored.all_tensors
    where placement is null or not contains(placement, 'partial')
),
counted_holders as (
    select *, count(*) over (partition by segment, layer, tensor, owner) as n_holders from holders
),
gone as (
    select distinct segment, step, layer, tensor
    from (
        select segment, step, layer, tensor, owner
        from counted_holders
        join silent using (segment, rank)
        group by segment, step, layer, tensor, owner
        having count(*) = any_value(n_holders)
    )
),
merged as (
    select
        segment, step, microbatch, call, pass, layer, tensor,
        case when bool_and(amax is not null) then max(amax)::float end as amax,
        arg_max((rank, seq), coalesce(amax, -1)) as holder, count(*) as n_shards,
        sum(n_nonzero)::bigint as n_nonzero, bool_and(sampled) as sampled,
        list({'rank': rank, 'seq': seq}) as members, min(seq) as first_seq
    from piece
    group by segment, step, microbatch, call, pass, layer, tensor
)
select
    row_number() over () as id, segment, step, microbatch, call, pass, layer, tensor,
    case when (segment, step, layer, tensor) not in (select (segment, step, layer, tensor) from gone) then amax end
        as amax,
    holder[1] as rank, holder[2] as seq, n_shards, n_nonzero, sampled, members, first_seq
from merged;
