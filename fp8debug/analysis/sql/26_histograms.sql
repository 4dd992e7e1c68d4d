-- Sampled: the distinct finite values of each record and how often each occurs; an exact summary of the tensor.
create or replace view histograms as
select
    t.segment, t.step, t.microbatch, t.call, t.pass, t.rank, t.layer, t.tensor, t.seq,
    h.counted, h.value, h.count, t.approx
from stored.histograms as h
join records as t using (segment, rank, seq)
where coalesce(t.row_class, 'all') = 'all';
