-- Ranks that hold the same tensor, but not the same values.
/*
severity = "error"
confidence = "certain"
priority = 4
only_if = ["exists (from stored.tensors where replica_of <> rank)"]
sentence = "{what}"
advice = """Look for what makes the ranks differ: unequal initial weights, a random state that is not shared, an optimizer or an all-reduce that \
one rank left out, a checkpoint that was loaded on some ranks only."""
symptom = "ranks that should be equal drift apart"
why = """
Replicas (a weight under data parallelism, an activation that all tensor-parallel ranks read) hold the same data. Amax, number of elements, \
non-finite values and, in sampled steps, a checksum of the raw bytes are compared. Once replicas differ, all that follows differs too, their \
FP8 scales included, and no figure of one rank stands for the others.
"""
explains = ["ranks_disagree"]
problems = ["replicas_differ"]

[[evidence]]
column = "amaxes"
title = "amax over the replicas"
healthy = "one value"
format = ""
*/
with odd as (
    select layer, tensor, step, odd_ranks, differs, min_amax, max_amax from replica_checks
    where not agree and is_judged_pass(pass)
),
seen as (
    select layer, tensor, count(distinct step) as n_observed_steps from replica_checks group by layer, tensor
),
found as (
    select
        layer, tensor, min(step) as first_step, max(step) as last_step, count(distinct step) as n_steps,
        list_sort(list_distinct(flatten(list(odd_ranks)))) as odd_ranks,
        list_sort(list_distinct(flatten(list(differs)))) as differs,
        arg_max(min_amax, max_amax - min_amax) as least, arg_max(max_amax, max_amax - min_amax) as largest
    from odd
    group by layer, tensor
)
select
    f.* exclude (odd_ranks, differs, least, largest), n_observed_steps,
    case when len(odd_ranks) = 1 then odd_ranks[1] end as rank,
    case when largest > least then format('{:.4g} to {:.4g}', least, largest) end as amaxes,
    format(
        '{} {} other data than the rank whose copy it is: {} differ{}',
        case when len(odd_ranks) = 1 then 'rank ' else 'ranks ' end
            || array_to_string(odd_ranks[1:4], ', ') || case when len(odd_ranks) > 4 then ', ...' else '' end,
        case when len(odd_ranks) = 1 then 'holds' else 'hold' end, array_to_string(differs, ', '),
        case when len(differs) = 1 then 's' else '' end
    ) as what,
    'replicas ' || array_to_string(odd_ranks, ',') as cause
from found as f
join seen using (layer, tensor)
