-- The magnitudes of one tensor in one step, over its records of all micro-batches, calls and ranks.
-- Evaluation and recomputed passes are left out.
-- amax: largest magnitude of the finite elements
-- amin: smallest non-zero magnitude of the finite elements
-- n_nonfinite: NaN and infinite elements of all records; NULL where none was counted
create or replace view tensor_steps as
select
    layer, tensor, step, max(amax) as amax, min(amin) as amin,
    sum(coalesce(n_nan, 0) + coalesce(n_posinf, 0) + coalesce(n_neginf, 0))
        filter (coalesce(n_nan, n_posinf, n_neginf) is not null)::bigint as n_nonfinite
from tensors
where is_judged_pass(pass)
group by layer, tensor, step;
