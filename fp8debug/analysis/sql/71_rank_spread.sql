-- How an operand differs over ranks: one row an operand, recipe, format and rank, training passes only.
-- n_ranks: ranks that hold a piece of it
-- n_records: records of this rank
-- amax: largest magnitude on this rank
-- group_amax: largest magnitude on any rank
-- amax_spread_bits: log2(group_amax / amax): how much smaller this rank's values are
-- scale_gap_bits: median of log2(scale in force / scale that current scaling would give this rank); > 0 clips
-- max_scale_gap_bits: largest of those
-- sqnr_db: median over this rank's sampled records under the scale in force
-- worst_sqnr_db: smallest of those
-- is_worst: whether no other rank has a lower SQNR, or, where nothing was sampled, a larger scale gap
create or replace view rank_spread as
with gaps as (
    select
        t.layer, t.tensor, t.rank, s.recipe, s.fmt, count(*) as n_records, max(t.amax) as amax,
        median(case when s.status = 'ok' then gap_bits(s.scale, kernel_amax(t.amax, t.n_posinf, t.n_neginf), s.fmt) end)
            as scale_gap_bits,
        max(case when s.status = 'ok' then gap_bits(s.scale, kernel_amax(t.amax, t.n_posinf, t.n_neginf), s.fmt) end)
            as max_scale_gap_bits
    from tensors as t
    join judged_scales as s using (segment, rank, seq)
    where is_judged_pass(t.pass)
    group by all
),
sampled as (
    select
        layer, tensor, rank, recipe, fmt, count(*) as n_records, max(amax) as amax,
        median(sqnr_db) as sqnr_db, min(sqnr_db) as worst_sqnr_db
    from error_ratios
    where is_judged_pass(pass)
    group by all
),
joined as (
    select
        layer, tensor, rank, recipe, fmt, coalesce(g.n_records, s.n_records) as n_records,
        coalesce(g.amax, s.amax) as amax, scale_gap_bits, max_scale_gap_bits, sqnr_db, worst_sqnr_db
    from gaps as g
    full join sampled as s using (layer, tensor, rank, recipe, fmt)
)
select
    layer, tensor, recipe, fmt, rank, count(*) over operand as n_ranks, n_records, amax,
    max(amax) over operand as group_amax,
    case when amax > 0 then log2(group_amax::double / amax) end as amax_spread_bits,
    scale_gap_bits, max_scale_gap_bits, sqnr_db, worst_sqnr_db,
    rank = first(rank) over (
        operand order by worst_sqnr_db nulls last, max_scale_gap_bits desc nulls last, rank
    ) as is_worst
from joined
window operand as (partition by layer, tensor, recipe, fmt)
order by layer, tensor, recipe, fmt, rank;
