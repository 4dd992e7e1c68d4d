-- The framework's scales of one tensor over the ranks that hold pieces or replicas of it: one row a pass and recipe.
-- Internal.
-- A table: computed once, when it is first named.
-- kind: gathered: pieces that are read together | replica: the same data | apart: each rank multiplies its own
-- ratio: largest scale over smallest; scales: in the order of ranks
-- is_by_amax: the inverses of the amaxes that the scales come from stand for them
create or replace temp table rank_scales as
with held as (
    select
        s.segment, s.step, s.microbatch, s.call, s.pass, s.layer, s.tensor, s.recipe, s.fmt, s.rank,
        s.scale::double as scale, 1 / nullif(s.amax_used, 0)::double as by_amax,
        r.shard, coalesce(r.replica_of, r.rank) as owner, coalesce(r.placement, 'local') as placement
    from stored.scales as s
    join records as r using (segment, rank, seq)
    where s.source = 'framework' and coalesce(s.status, 'ok') <> 'per_block' and is_judged_pass(s.pass)
      and coalesce(r.row_class, 'all') = 'all' and not contains(coalesce(r.placement, ''), 'partial')
      and s.recipe not like 'static%' and not s.alternate
),
one_each as (
    select * exclude (scale), any_value(scale) as scale
    from (
        select * exclude (by_amax), false as is_by_amax from held
        union all
        select * exclude (by_amax) replace (by_amax as scale), true as is_by_amax from held
    )
    where scale > 0 and isfinite(scale)
    group by all
),
numbered as (
    -- Under data parallelism there are several such tensors: the first holders of each piece have one, and so on.
    select
        *,
        count(*) over (
            partition by segment, step, microbatch, call, pass, layer, tensor, recipe, fmt, is_by_amax, owner
        ) > 1 as is_replicated,
        dense_rank() over (
            partition by segment, step, microbatch, call, pass, layer, tensor, recipe, fmt, is_by_amax, shard
            order by owner
        ) as tensor_number
    from one_each
),
compared as (
    select
        segment, step, microbatch, call, pass, layer, tensor, recipe, fmt, is_by_amax,
        count(distinct owner) as n_pieces, count(*) as n_ranks, bool_or(shard is not null) as is_cut,
        list(rank order by rank) as ranks, list(scale order by rank) as scales, max(scale) / min(scale) as ratio,
        -- Rows that are cut are gathered before the GEMM; along the contraction each rank keeps its own part.
        tensor in ('x', 'dy') and not bool_or(regexp_matches(placement, 'shard\([1-9]')) as is_gathered
    from numbered
    where shard is not null or is_replicated
    group by
        segment, step, microbatch, call, pass, layer, tensor, recipe, fmt, is_by_amax, tensor_number, shard is null
    having n_ranks > 1
)
select
    * exclude (is_cut, is_gathered, n_pieces),
    case
        when not is_cut or n_pieces = 1 then 'replica'
        when is_gathered or recipe like 'delayed%' then 'gathered'
        else 'apart'
    end as kind
from compared;
