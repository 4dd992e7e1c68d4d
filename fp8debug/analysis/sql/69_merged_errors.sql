-- Sampled: error sums over the distinct pieces of a tensor, one row a pass, recipe and format; no partial sums.
-- scale_scope: record: each piece under its own scale | group: all under the group's, replayed over ranks | rank
-- scale: the one scale of all pieces; NULL where they have several
-- n_shards: distinct pieces merged
-- worst_rank: rank whose piece has the lowest SQNR
-- worst_rank_sqnr_db: its SQNR, dB
-- n_low: number of the smallest 99 % of each piece's non-zero values; low_ sums are over those
create or replace view merged_errors as
select
    t.segment, t.step, t.microbatch, t.call, t.pass, t.layer, t.tensor,
    e.recipe, e.fmt, e.alternate, e.source, e.scale_scope,
    case when min(e.scale) = max(e.scale) then min(e.scale) end as scale,
    count(*) as n_shards, arg_min(t.rank, sqnr_db(e.sum_x2, e.sum_err2)) as worst_rank,
    min(sqnr_db(e.sum_x2, e.sum_err2)) as worst_rank_sqnr_db,
    sum(e.n)::bigint as n, sum(e.n_nonzero)::bigint as n_nonzero, sum(e.n_underflow)::bigint as n_underflow,
    sum(e.n_overflow)::bigint as n_overflow, sum(e.sum_x2) as sum_x2, sum(e.sum_q2) as sum_q2,
    sum(e.sum_xq) as sum_xq, sum(e.sum_err2) as sum_err2, sum(e.n_low)::bigint as n_low,
    sum(e.low_sum_x2) as low_sum_x2, sum(e.low_sum_err2) as low_sum_err2, max(e.approx) as approx
from judged_errors as e
join shards as t using (segment, rank, seq)
group by all;
