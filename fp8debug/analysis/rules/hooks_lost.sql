-- A layer that was recorded in every step, and from some step on no more; and modules that were replaced.
/*
severity = "warning"
priority = 33
sentence = "{what}"
advice = """Attach after the model has its final form (conversion to FP8, adapters, compilation), or once more after it changed; if the layer is \
no longer called, nothing is missing."""
symptom = "records of a layer end in the middle of a run"
why = """
Hooks sit on modules. Whatever puts another module in the place of a hooked one (conversion to FP8 after attaching, quantisers, adapters, \
`model.fc = new`) takes them away, and nothing fails: records simply end. Replaced modules are hooked again before their next forward, which is \
told as a note, since between the two nothing was seen. A layer whose records end although the run goes on is told as a warning.
"""
problems = ["reattached"]

[parameters.min_later]
default = 3
meaning = "sampled steps after the last one of the layer"
source = "a layer that is skipped once is no lost one"
*/
with sampled_x as (
    select distinct rank, layer, step
    from tensors
    where sampled and tensor = 'x' and is_judged_pass(pass)
),
steps_of as (
    select rank, step, row_number() over (partition by rank order by step) as number,
        count(*) over (partition by rank) as n
    from (select distinct rank, step from sampled_x)
),
runs as (
    select x.rank, layer, min(number) as first_number, max(number) as last_number, count(*) as n_seen,
        min(x.step) as first_seen, max(x.step) as last_seen, any_value(n) as n
    from sampled_x as x
    join steps_of using (rank, step)
    group by x.rank, layer
)
select
    layer, 'x' as tensor, rank, last_seen + 1 as first_step, null::bigint as last_step,
    format(
        'recorded in all {} sampled steps to step {} and in none of the {} after it', n_seen, last_seen, n - last_number
    ) as what,
    null as severity, 'lost' as cause
from runs
where n - last_number >= $min_later and n_seen >= $min_later and n_seen = last_number - first_number + 1
  and not exists (from stored.events where kind = 'control')
union all
select layer, null, null, min(step), max(step), message, 'note', 'reattached'
from events
where kind = 'reattached'
group by layer, message
