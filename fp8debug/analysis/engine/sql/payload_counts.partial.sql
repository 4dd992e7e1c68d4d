-- How many codes of each payload are at the largest value of the format or beyond, and how many are subnormal.
-- given: segment, rank, seq, fmt
select
    h.segment, h.rank, h.seq,
    coalesce(sum(h.count) filter (abs(h.value) >= fmt_max(g.fmt)), 0)::bigint as n_largest,
    coalesce(sum(h.count) filter (h.value <> 0 and abs(h.value) < fmt_min_normal(g.fmt)), 0)::bigint as n_subnormal
from stored.histograms as h
join given as g using (segment, rank, seq)
group by h.segment, h.rank, h.seq
