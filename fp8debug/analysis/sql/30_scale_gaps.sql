-- One row a pass and stateful recipe: the scale in force beside that of current scaling; exists at unsampled steps too.
-- amax: largest magnitude of the finite elements of this record
-- n_nonzero: finite non-zero elements; all elements where zeros were not counted
-- current_scale: scale that current scaling would give this record in the same format
-- scale_gap_bits: log2(scale / current_scale): > 0 clips, < 0 wastes range
-- gap_status: ok | warmup | history_incomplete | amax_zero | amax_nonfinite | amax_unknown: why the gap is NULL
create or replace view scale_gaps as
with joined as (
    select
        s.*, t.amax, t.sampled, t.row_class,
        coalesce(s.n_group_nonzero, t.n - t.n_zero - t.n_nan - t.n_posinf - t.n_neginf, t.n) as n_nonzero,
        kernel_amax(t.amax, t.n_posinf, t.n_neginf) as seen_amax
    from judged_scales as s
    join tensors as t using (segment, rank, seq)
    where s.sets_amax
),
judged as (
    select
        *,
        current_scale(seen_amax, fmt) as current_scale,
        case
            when status <> 'ok' then status
            when seen_amax is null then 'amax_unknown'
            when not isfinite(seen_amax) then 'amax_nonfinite'
            when seen_amax = 0 then 'amax_zero'
            else 'ok'
        end as gap_status
    from joined
)
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq,
    recipe, fmt, alternate, source, scope, sampled, n_nonzero, amax, scale, current_scale,
    case when gap_status = 'ok' then gap_bits(scale, amax, fmt) end as scale_gap_bits,
    gap_status, amax_used, history_len, history_zeros, n_rolls, set_at_step
from judged;
