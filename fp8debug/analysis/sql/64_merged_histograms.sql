-- Sampled: the histogram of the whole tensor, over ranks: exact where is_complete in merged_tensors.
-- count: how many elements of all pieces have the value
-- n_shards: distinct pieces in which the value occurs
create or replace view merged_histograms as
select
    t.segment, t.step, t.microbatch, t.call, t.pass, t.layer, t.tensor,
    h.value, sum(h.count)::bigint as count, count(*) as n_shards, max(t.approx) as approx
from stored.histograms as h
join shards as t using (segment, rank, seq)
group by
    t.segment, t.step, t.microbatch, t.call, t.pass, t.layer, t.tensor,
    h.value, signbit(h.value);
