-- Weights at fixed positions, with the shape of the whole: one row a weight that is whole on a rank, and step.
-- Internal.
create or replace view weight_samples as
select s.layer, s.segment, s.step, r.shape, s.fmt, s.stride, s."values", s.codes, s.scale_inv
from wsample as s
join records as r using (segment, rank, seq)
where coalesce(r.placement, 'local') in ('local', 'replicate') and r.shard is null and r.pass <> 'eval'
qualify row_number() over (partition by s.layer, s.segment, s.step order by s.rank, s.seq) = 1;
