-- Ranks, layers, files or steps that left no records, and what could not be measured.
/*
severity = "watch"
confidence = "certain"
priority = 34
sentence = "{message}"
advice = "Read what is said of them before trusting that nothing else was found: what was not recorded was not judged."
symptom = "a report that looks too quiet"
why = """
Nothing found is only good news of what was looked at. A rank without files, a layer whose hook never fired, a damaged part of a file, a tensor \
of a kind that cannot be measured, or sampled steps without a record are each told, with the severity that they have for the verdict: a \
capture that switched itself off is an error, missing ranks and files are a warning, single layers something to watch.
"""
problems = [
    "never_fired", "unsupported", "not_captured", "bad_file", "rank_missing", "missing_rank", "disabled", "evaluation_only", "history_absent",
]
*/
with told as (
    select
        kind, layer, tensor, case when kind = 'rank_missing' then rank end as rank, step, message,
        case kind
            when 'disabled' then 'error' when 'rank_missing' then 'warning' when 'bad_file' then 'warning'
            when 'evaluation_only' then 'warning' when 'never_fired' then 'watch' when 'unsupported' then 'watch'
            when 'not_captured' then 'watch' when 'history_absent' then 'watch'
        end as severity
    from events
),
gaps as (
    select rank, step
    from (select distinct rank, step from steps where sampled)
    anti join (select distinct rank, step from stored.tensors) using (rank, step)
    where step > (select min(step) from stored.tensors)
      and not getvariable('is_part') and not exists (from stored.events where kind = 'control')
),
nothing as (
    select count(*) > 0 as is_silent from stored.layers
    where matched and not getvariable('is_part') and not exists (from stored.tensors)
)
select
    layer, tensor, rank, min(step) as first_step, max(step) as last_step,
    case when kind = 'never_fired' and is_silent then 'error' else severity end as severity,
    case kind when 'never_fired' then layer || ' left no records: ' || message else message end as message, kind as cause
from told, nothing
where severity is not null
group by kind, severity, layer, tensor, rank, message, is_silent
union all
select
    null, null, rank, min(step), max(step), 'warning',
    case when count(*) = 1 then format('sampled step {} has no records', min(step))
        else format('{} sampled steps between {} and {} have no records', count(*), min(step), max(step)) end
        || ': a part of the files is missing',
    'gap'
from gaps
group by rank
