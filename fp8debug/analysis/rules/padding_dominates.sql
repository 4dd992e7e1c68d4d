-- Rows that are no tokens have the largest values, and so decide the scale of those that are.
/*
severity = "note"
priority = 62
only_if = ["exists (from stored.tensors where row_class = 'padding')"]
sentence = "scale dominated by {rows}, {verdict}"
advice = "Fill padding rows with zeros before the cast, or leave them out of the amax; where the valid rows keep their SQNR nothing need be done."
symptom = "gradients grow when sequences are packed to the multiple that a quantiser needs"
why = """
One scale for a tensor follows its largest value, whichever row it is in. Where sequences are extended to the multiple of 16, 32 or 128 rows \
that a quantiser needs, the rows that only fill up can hold anything, and what they hold may set the scale. In E4M3 that is harmless over \
11 bits: rows that are 7 bits smaller than the padding keep their 31.6 dB. In a format with less range it is not.

Valid and padding rows are told apart by `session.mask`. The rule compares the SQNR of the valid rows, under the scale of the whole tensor, \
with what rounding alone can give at worst. Padding of zeros never sets a scale, and its zeros are no underflow.
"""
explains = ["underflow", "sqnr_low"]

[parameters.bits]
default = 1.0
unit = "bits"
meaning = "padding rows dominate where the valid rows alone would have a scale so much larger"
source = "a bit of unused range is usual under any scale that has a margin"

[[evidence]]
column = "padding_amax"
title = "amax of padding rows"
healthy = "{valid_amax:.4g} or less"

[[evidence]]
column = "valid_scale_gap_bits"
title = "scale gap of the valid rows, bits"
healthy = "0"
format = "+.1f"

[[evidence]]
column = "valid_sqnr_db"
title = "SQNR of the valid rows, dB"
healthy = "{healthy_sqnr_db:.1f}"
format = ".1f"

[[evidence]]
column = "valid_underflow_percent"
title = "underflow in valid rows, %"
healthy = "0"
format = ".2g"
*/
with judged as (
    select
        c.*,
        case fmt
            when 'E2M1' then 14.0 when 'E3M2' then 19.1 when 'E2M3' then 24.6
            else sqnr_floor_db(fmt)
        end as floor_db,
        valid_amax > 0 and padding_amax > valid_amax and valid_scale_gap_bits <= -$bits as is_hit
    from row_classes as c
    where not alternate and is_judged_pass(pass)
),
pads as (
    select segment, step, microbatch, call, pass, rank, layer, tensor, shape[1] as n_rows, "rows" as row_text
    from records
    where row_class = 'padding'
),
dominated as (
    select
        j.layer, j.tensor, j.recipe, j.fmt, min(j.step) as first_step, max(j.step) as last_step,
        count(distinct j.step) as n_steps, median(valid_sqnr_db) as valid_sqnr_db, any_value(floor_db) as floor_db,
        median(valid_scale_gap_bits) as valid_scale_gap_bits, max(padding_amax) as padding_amax,
        max(valid_amax) as valid_amax, 100 * median(valid_underflow) as valid_underflow_percent,
        max(n_rows) as n_rows, case when count(distinct row_text) = 1 then any_value(row_text) end as row_text
    from judged as j
    left join pads using (segment, step, microbatch, call, pass, rank, layer, tensor)
    where is_hit
    group by j.layer, j.tensor, j.recipe, j.fmt
),
seen as (
    select layer, tensor, recipe, fmt, count(distinct step) as n_observed_steps
    from judged
    group by layer, tensor, recipe, fmt
)
select
    d.* exclude (row_text, n_rows, floor_db, fmt), n_observed_steps,
    coalesce('rows ' || row_text, case when n_rows = 1 then '1 padding row' else n_rows || ' padding rows' end) as rows,
    coalesce(valid_sqnr_db < floor_db, false) as is_harmful,
    case fmt when 'E2M1' then 18.0 when 'E3M2' then 25.6 when 'E2M3' then 31.5
        else baseline_db(fmt) end as healthy_sqnr_db,
    greatest(healthy_sqnr_db - valid_sqnr_db, 0) as db_lost,
    case
        when is_harmful
        then format(
            'and harmful: under {} the valid rows keep only {:.1f} dB in {}', recipe, valid_sqnr_db, fmt
        )
        else format('not harmful for {} per-tensor: the valid rows keep {:.1f} dB under {}', fmt, valid_sqnr_db, recipe)
    end as verdict,
    case when is_harmful then 'warning' end as severity,
    'padding' as cause
from dominated as d
join seen using (layer, tensor, recipe, fmt)
where n_steps >= getvariable('min_share') * n_observed_steps and valid_sqnr_db is not null
qualify row_number() over (partition by layer, tensor order by is_harmful desc, valid_sqnr_db, recipe) = 1
