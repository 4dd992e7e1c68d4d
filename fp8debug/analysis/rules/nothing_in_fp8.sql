-- FP8 was asked for, and none of the GEMMs that were seen ran in it, or some did not.
/*
severity = "error"
confidence = "certain"
priority = 3
only_if = [
    "not getvariable('is_part')",
    "getvariable('emulates') is not null or exists (from stored.events where kind in ('precision_differs', 'not_emulated')) or exists (from stored.tensors where starts_with(precision_asked, 'float8'))",
]
sentence = "{what}"
advice = """Check that the conversion reached these layers (sizes that are no multiple of 16, a filter, a module that was replaced later), that the \
hardware and the library support it, and that the autocast context is entered around the forward."""
symptom = "no speed-up, and a loss that is exactly that of BF16"
why = """
Frameworks fall back to high precision without a word: a layer whose size does not fit, a filter that took too much, a context that was not \
entered, a device without FP8. The training runs, the loss is fine, and nothing of it says anything about FP8. What a layer was asked to run \
in is compared with the dtypes that its GEMMs read. Layers whose GEMMs are hidden in a graph of torch.compile are not judged.
"""
problems = ["precision_differs", "not_emulated"]
*/
with low as (
    select layer from records group by layer
    having bool_or(contains(gemm_dtype, '_') or is_payload(dtype))
    union
    select name from stored.layers where emulated is not null
),
told as (
    select layer, min(step) as first_step, any_value(message) as message from events
    where kind in ('precision_differs', 'not_emulated') and layer is not null
    group by layer
),
silent as (
    select layer, min(step) as first_step, null as message from records
    where starts_with(precision_asked, 'float8')
      and layer not in (select coalesce(layer, '') from events where kind = 'not_captured' and message like '%graph%')
    group by layer
),
differing as (
    select * from told
    union all
    select * from silent anti join told using (layer)
),
missing as (
    select * from differing anti join low using (layer)
),
numbers as (
    select (select count(*) from missing) as n_missing, (select count(*) from low) as n_low,
        (select count(*) from stored.layers where matched) as n_layers
)
select
    layer, first_step, n_low = 0 as is_all,
    case when n_low = 0
        then format(
            'FP8 was asked for and nothing ran in it: {} of {} layers were to run in FP8{}', n_missing,
            greatest(n_layers, n_missing), coalesce('; ' || layer || ': ' || message, '')
        )
        else format(
            'FP8 was asked for and {} of {} layers did not run in it{}', n_missing, n_missing + n_low,
            coalesce('; ' || layer || ': ' || message, '')
        )
    end as what,
    case when n_low > 0 then 'warning' end as severity, 'fp8' as cause
from missing, numbers
union all
select
    null, null, true,
    format('{} was to be emulated, and no layer is: all run in high precision', getvariable('emulates')), null, 'fp8'
from numbers
where getvariable('emulates') is not null and n_low = 0 and n_missing = 0 and n_layers > 0
