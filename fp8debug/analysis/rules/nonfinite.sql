-- The first value of the run that is not finite, in order of execution, and what produced it.
/*
severity = "error"
confidence = "certain"
priority = 1
only_if = [
    "exists (from nonfinite_records) or exists (from stored.events where kind = 'nonfinite') or exists (from stored.steps where not isfinite(loss) or not isfinite(grad_norm))",
]
sentence = "{what}"
advice = "Look at the place that is named and at what runs right before it; everything that is not finite later follows from it. Do not use checkpoints written after that step."
symptom = "NaN or Inf in loss or gradient norm, or a finite loss and a checkpoint with NaN"
problems = ["nonfinite"]
why = """
One NaN or Inf spreads: through the residual path forward, through every gradient backward, through the update into the weights. Only the first
one in order of execution (step, micro-batch, pass, then the order of observation; of several ranks the lowest at the same moment) tells
anything. Where the operands of a GEMM were finite and its result is not, that GEMM produced it. A weight that is not finite was written so,
by the last update or by the checkpoint. An input or an incoming gradient was produced between the last finite record and here. Codes that are
NaN while the tensor was finite come from the quantiser, as a rule from a scale of 0 or infinity. A loss can stay finite, and a job end as a success,
while one weight gradient is NaN. A gradient that overflows in a step that a loss scaler skips is healthy and not told.
"""

[[evidence]]
column = "n_nan"
title = "NaN values"
healthy = "0"
format = "d"

[[evidence]]
column = "n_inf"
title = "infinite values"
healthy = "0"
format = "d"

[[evidence]]
column = "n_rows_nonfinite"
title = "rows with any"
healthy = "0"
format = "d"

[[evidence]]
column = "n_layers_reached"
title = "layers reached later"
healthy = "0"
format = "d"

[[evidence]]
column = "loss"
title = "loss of that step"
healthy = "finite"

[[evidence]]
column = "grad_norm"
title = "gradient norm of that step"
healthy = "finite"
*/
with reported as (
    select * from steps where not isfinite(loss) or not isfinite(grad_norm)
),
moments as (
    select
        'record' as kind, segment, step, microbatch, case pass when 'forward' then 0 when 'eval' then 0 else 2 end as pass_order,
        call, pass, rank, layer, tensor, seq, n_nan, n_inf, n_rows_nonfinite, first_nonfinite_row, is_codes
    from nonfinite_records
    union all by name
    select
        'event' as kind, segment, step, 2147483647 as microbatch, 3 as pass_order, 'backward' as pass, rank, layer, tensor
    from events
    where kind = 'nonfinite' and tensor = 'dw' and layer is not null
    union all by name
    select
        'gradient' as kind, segment, step, 2147483647 as microbatch, 3 as pass_order, 'backward' as pass, rank
    from events
    where kind = 'nonfinite' and layer is null and step is not null and contains(message, 'gradients')
    union all by name
    select
        'loss' as kind, segment, step,
        greatest(coalesce(list_position(list_transform(losses, lambda value: isfinite(value)), false), 1) - 1, 0)
            as microbatch,
        1 as pass_order, 'forward' as pass, rank
    from reported
    where not isfinite(loss)
    union all by name
    select 'grad_norm' as kind, segment, step, 2147483647 as microbatch, 4 as pass_order, 'backward' as pass, rank
    from reported
    where not isfinite(grad_norm) and not coalesce(skipped, false)
),
firsts as (
    select * from moments
    qualify row_number() over (partition by rank order by step, microbatch, pass_order, seq nulls last, layer) = 1
),
placed as (
    select rank, count(*) as n_before
    from firsts as f
    join records as r using (segment, rank, step)
    where r.seq < f.seq
    group by rank
),
origin as (
    select * from firsts
    left join placed using (rank)
    order by step, microbatch, pass_order, coalesce(n_before, 0), rank
    limit 1
),
reached as (
    select count(distinct m.layer) as n_layers
    from moments as m, origin as o
    where m.layer is distinct from o.layer
),
nearby as (
    select
        -- Of its own layer only what another pass read: x, w and y of one forward are recorded together.
        arg_max(r.layer || ' ' || r.tensor, r.seq) filter (r.layer <> o.layer or r.pass <> o.pass) as before,
        list_distinct(list(r.tensor) filter (
            r.layer = o.layer and r.step = o.step and (o.kind = 'event' or (r.microbatch = o.microbatch and r.call = o.call))
            and not is_payload(r.dtype)
        )) as finite_here
    from records as r, origin as o
    where r.rank = o.rank and r.segment = o.segment and r.step between o.step - 1 and o.step
      and (o.seq is null or r.seq < o.seq) and coalesce(r.row_class, 'all') = 'all'
      and not (coalesce(r.n_nan, 0) + coalesce(r.n_posinf, 0) + coalesce(r.n_neginf, 0) > 0)
),
cast_scale as (
    select any_value(s.scale) as scale
    from stored.scales as s, origin as o
    where s.segment = o.segment and s.rank = o.rank and s.seq = o.seq and s.source = 'framework'
),
told as (
    select
        o.*, s.loss, s.grad_norm, reached.n_layers as n_layers_reached, before, coalesce(finite_here, []) as finite_here,
        cast_scale.scale as cast_scale,
        case when o.tensor in ('x', 'w', 'y') then 'fprop' when o.tensor in ('dy', 'dx') then 'dgrad'
             when o.tensor = 'dw' then 'wgrad' end as gemm
    from origin as o
    cross join reached
    cross join nearby
    cross join cast_scale
    left join steps as s using (segment, step, rank)
),
worded as (
    select
        *,
        case
            when kind = 'loss' then 'produced outside the recorded layers: every recorded value before it was finite'
            when kind = 'gradient' then 'it is of no recorded layer''s weight: produced outside the recorded layers'
            when kind = 'grad_norm' then 'produced outside the recorded layers: no recorded tensor of that step has one'
            when is_codes and list_contains(finite_here, tensor)
            then 'produced by the quantiser: the tensor itself was finite'
                 || coalesce(format(', its scale {}', number_text(cast_scale)), '')
            when is_codes then 'read by the GEMM in low precision; the tensor itself was not recorded'
            when tensor = 'w'
            then 'the weight itself: written by '
                 || case when step = 0 then 'the checkpoint or the initialisation' else 'the last update' end
            when tensor = 'dw' and list_contains(finite_here, 'x') and list_contains(finite_here, 'dy')
            then 'produced by this wgrad: x and dy were finite'
            when tensor = 'dw' then 'x and dy were not recorded: this wgrad, or what came before it'
            when tensor = 'y' and list_contains(finite_here, 'x') and list_contains(finite_here, 'w')
            then 'produced by this fprop: x and w were finite'
            when tensor = 'dx' and list_contains(finite_here, 'dy')
            then 'produced by this dgrad: dy was finite'
            else 'produced before it' || coalesce(format(', after the last finite record, {}', before),
                                                  ': it is the first record')
        end as origin_text
    from told
)
select
    layer, tensor, gemm, rank, step as first_step, step as last_step, 1 as n_steps, 'inf'::double as db_lost,
    n_nan, n_inf, n_rows_nonfinite, n_layers_reached, loss, grad_norm,
    case kind
        when 'loss' then format('the first value that is not finite is the loss of step {}, micro-batch {}, rank {}', step,
                                microbatch, rank)
        when 'gradient' then format('the first value that is not finite is in a gradient of step {}, rank {}', step, rank)
        when 'grad_norm' then format('the first value that is not finite is the gradient norm of step {}, rank {}', step, rank)
        else format('the first value that is not finite: step {}, {}{}, rank {}: {} {}', step,
                    case when kind = 'event' then '' else format('micro-batch {}, {}, ', microbatch, pass) end,
                    gemm, rank, layer, case when is_codes then 'codes of ' else '' end || tensor)
             || coalesce(format(', row {}', first_nonfinite_row), '')
    end || '; ' || origin_text
    || case when n_layers_reached > 0 and kind in ('record', 'event')
       then format('; it reached {} other layer{}', n_layers_reached, case when n_layers_reached > 1 then 's' else '' end)
       else '' end as what
from worded;
