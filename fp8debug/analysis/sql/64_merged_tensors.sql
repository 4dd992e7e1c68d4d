-- Health over ranks: one row a pass, over the distinct pieces of the tensor; partial sums are not merged.
-- n_shards: distinct pieces merged
-- ranks: ranks whose records were merged
-- n_pieces: pieces that the whole tensor is cut into; NULL where no rank says
-- is_complete: false where a piece that some rank names, or one recorded in other passes, is missing
-- sampled: whether every piece was sampled
-- n: elements of all pieces
-- n_zero: elements equal to zero, of either sign; all counts are sums over the pieces
-- amin: smallest non-zero magnitude of any piece
-- amax: largest magnitude of any piece
create or replace view merged_tensors as
with named as (
    select
        *,
        case when shard is not null then
            list_product(regexp_extract_all(shard, '/(\d+)', 1)::bigint[])
        end as of_pieces
    from shards
),
merged as (
    select
        segment, step, microbatch, call, pass, layer, tensor,
        any_value(dtype) as dtype, any_value(gemm_dtype) as gemm_dtype,
        count(*) as n_shards, list_sort(list(rank)) as ranks, max(of_pieces)::bigint as n_pieces,
        count(distinct shard) as n_named, bool_and(sampled) as sampled,
        sum(n)::bigint as n, sum(n_zero)::bigint as n_zero, sum(n_neg_zero)::bigint as n_neg_zero,
        sum(n_nan)::bigint as n_nan, sum(n_posinf)::bigint as n_posinf, sum(n_neginf)::bigint as n_neginf,
        min(amin) as amin, max(amax) as amax, max(approx) as approx
    from named
    group by segment, step, microbatch, call, pass, layer, tensor
),
owners as (
    select segment, layer, tensor, count(distinct owner) as n_owners
    from shards
    where is_judged_pass(pass)
    group by segment, layer, tensor
)
select
    m.* exclude (n_named),
    n_shards >= n_owners and coalesce(n_named >= n_pieces, true) as is_complete
from merged as m
left join owners using (segment, layer, tensor);
