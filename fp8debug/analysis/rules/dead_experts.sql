-- Experts that no token ever reaches, or whose tensors are nothing but zeros.
/*
severity = "warning"
priority = 30
only_if = ["exists (from stored.tensors where status = 'no_tokens' or contains(layer, '[') or contains(lower(layer), 'expert'))"]
sentence = "{n_dead} of {n_experts} experts of {stack} {what}: {named}"
advice = """Look at the router: its load-balancing loss, its initial weights, and whether a mask or a capacity limit hides these experts. Exclude \
experts without tokens from calibration, since their scales mean nothing."""
symptom = "the load of experts is uneven; inf or NaN in the scales of a quantised mixture of experts"
why = """
An expert that gets no token has no activations, so its amax stays 0, its scale means nothing, and its weights no longer learn. Checkpoints \
that are quantised from such a run carry scales that are infinite, NaN or zero for it, and the first token that is ever routed there becomes \
NaN. An expert that is silent for a step or two is usual; the rule tells those that were silent all along.
"""
problems = ["no_tokens"]

[[evidence]]
column = "n_dead"
title = "experts without a token or a non-zero value"
healthy = "0 of {n_experts}"
format = "d"
*/
with members as (
    select
        regexp_extract(layer, '^(.*)(?:\.|\[)(\d+)(?:\.|\]|$)', ['stack', 'expert']) as parts,
        parts['stack'] as stack, parts['expert'] as expert, layer, is_expert
    from (
        select *, layer like '%[%]' or contains(lower(layer), 'expert') as is_expert
        from (
            select layer from layers where matched
            union
            select distinct layer from stored.tensors where layer like '%[%]'
        )
    )
    where expert <> ''
),
seen as (
    select
        layer, tensor, bool_and(status = 'no_tokens') as is_idle,
        bool_and(coalesce(n_zero = n, false) and status <> 'no_tokens') as is_zero,
        min(step) as first_step, max(step) as last_step
    from tensors
    where is_judged_pass(pass) and layer in (select layer from members) and tensor in ('x', 'w', 'dy')
    group by layer, tensor
),
layers_seen as (
    select
        m.stack, m.expert, m.layer, m.is_expert, coalesce(bool_and(s.is_idle) filter (s.tensor = 'x'), false) as is_idle,
        coalesce(bool_or(s.is_zero), false) and m.is_expert as is_zero,
        -- Of a part of the run, or where ranks are missing, nothing follows from records that are not there.
        count(s.layer) = 0 and not getvariable('is_part') and not exists (from events where kind = 'rank_missing')
            as is_silent,
        min(s.first_step) as first_step, max(s.last_step) as last_step
    from members as m
    left join seen as s using (layer)
    group by m.stack, m.expert, m.layer, m.is_expert
),
experts as (
    select
        stack, expert, bool_or(is_expert) as is_expert, bool_and(is_idle or is_silent) and bool_or(is_idle) as is_idle,
        bool_or(is_zero) as is_zero, bool_and(is_silent) as is_silent, min(first_step) as first_step,
        max(last_step) as last_step, min(layer) as layer
    from layers_seen
    group by stack, expert
),
stacks as (
    select
        stack, count(*) as n_experts, min(first_step) as first_step, max(last_step) as last_step,
        count(*) filter (is_idle or is_zero or (is_silent and is_expert)) as n_dead,
        count(*) filter (is_idle or (is_silent and is_expert)) as n_idle
    from experts
    group by stack
    having n_dead > 0 and n_dead < n_experts
),
steps_of as (
    select count(distinct step) as n_steps from stored.steps
)
select
    e.layer, s.stack as cause, s.stack, s.n_experts, s.n_dead, s.first_step, s.last_step,
    greatest(n_steps, s.last_step - s.first_step + 1) as n_observed_steps, n_observed_steps as n_steps,
    case when n_idle = n_dead then 'never got a token' when n_idle = 0 then 'hold or get nothing but zeros'
        else 'never got a token, or hold nothing but zeros' end as what,
    (select array_to_string(list(expert order by expert::int)[1:8], ', ')
        || case when count(*) > 8 then ', ...' else '' end
     from experts as x where x.stack = s.stack and (x.is_idle or x.is_zero or (x.is_silent and x.is_expert))) as named,
    case when n_observed_steps < getvariable('short_run_steps') then 'watch' end as severity,
    case when n_observed_steps < getvariable('min_steps') then 'not_enough_evidence' end as confidence,
    case when n_observed_steps < getvariable('min_steps') then 'more steps: an expert may be silent for a few' end
        as needs
from stacks as s
join experts as e on e.stack = s.stack and (e.is_idle or e.is_zero or (e.is_silent and e.is_expert)), steps_of
