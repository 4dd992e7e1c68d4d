-- The weights of a run, as records of steps have them: one row a weight that is whole on a rank, and step.
-- Internal.
-- rms: of the finite elements, in high precision
create or replace view recorded_weights as
with of_weights as (
    select segment, step, rank, seq, layer, shape, amax, n_nan + n_posinf + n_neginf as n_nonfinite
    from tensors
    where tensor = 'w' and pass <> 'eval' and coalesce(placement, 'local') in ('local', 'replicate') and shard is null
)
select
    w.*,
    (
        select any_value(sqrt(e.sum_x2 / e.n)) from stored.errors as e
        where (e.segment, e.rank, e.seq) = (w.segment, w.rank, w.seq) and e.n > 0 and e.source <> 'payload'
    ) as rms
from of_weights as w
qualify row_number() over (partition by layer, segment, step order by rank, seq) = 1;
