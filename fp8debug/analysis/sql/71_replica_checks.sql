-- One row a pass and piece that several ranks hold: whether its replicas agree; replicas that differ are a fault.
-- owner: lowest rank that holds the piece
-- n_replicas: ranks that recorded it
-- ranks: those ranks
-- differs: what is not the same in all of them: amax | n | nonfinite | checksum
-- agree: whether nothing is
-- odd_ranks: ranks whose amax, n, non-finite count or checksum is not the owner's
-- min_amax: smallest amax over the replicas
-- max_amax: largest amax over the replicas
create or replace view replica_checks as
with pieces as (
    select
        *, coalesce(replica_of, rank) as owner,
        coalesce(n_nan, 0) + coalesce(n_posinf, 0) + coalesce(n_neginf, 0) as n_nonfinite
    from tensors
    where placement is null or not contains(placement, 'partial')
),
shared as (
    select distinct segment, layer, tensor, owner from pieces where rank <> owner
),
compared as (
    select
        *,
        coalesce(amax <> first(amax) over same, false) as other_amax,
        coalesce(n <> first(n) over same, false) as other_n,
        n_nonfinite <> first(n_nonfinite) over same as other_nonfinite,
        coalesce(checksum <> any_value(checksum) over (same rows between unbounded preceding and unbounded following),
                 false) as other_checksum
    from pieces
    semi join shared using (segment, layer, tensor, owner)
    window same as (
        partition by segment, step, microbatch, call, pass, layer, tensor, owner order by rank
    )
)
select
    segment, step, microbatch, call, pass, layer, tensor, owner,
    count(*) as n_replicas, list_sort(list(rank)) as ranks,
    list_filter(
        [
            case when bool_or(other_amax) then 'amax' end, case when bool_or(other_n) then 'n' end,
            case when bool_or(other_nonfinite) then 'nonfinite' end,
            case when bool_or(other_checksum) then 'checksum' end
        ],
        lambda word: word is not null
    ) as differs,
    len(differs) = 0 as agree,
    coalesce(
        list_sort(list(rank) filter (other_amax or other_n or other_nonfinite or other_checksum)), []
    ) as odd_ranks,
    min(amax) as min_amax, max(amax) as max_amax
from compared
group by segment, step, microbatch, call, pass, layer, tensor, owner
having n_replicas > 1;
