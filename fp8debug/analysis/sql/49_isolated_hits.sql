-- Hits that are no candidate: one line a step and recipe.
-- n_operands: operands that hit in this step
-- message: the step in words, its worst operands named
create or replace view isolated_hits as
with worst as (
    select
        step, recipe, fmt, layer, tensor, max(db_lost) as db_lost, max(scale_gap_bits) as scale_gap_bits,
        list_sort(list_distinct(flatten(list(criteria)))) as criteria
    from hits
    anti join candidates using (recipe, fmt, layer, tensor)
    where not alternate
    group by step, recipe, fmt, layer, tensor
)
select
    step, recipe, count(*) as n_operands, max(db_lost) as db_lost,
    format(
        'step {}: {} hit once under {}: {}{}', step,
        case when count(*) = 1 then '1 operand' else count(*) || ' operands' end, recipe,
        array_to_string(
            list_slice(
                list(format('{} {} ({})', layer, tensor, array_to_string(criteria, ', ')) order by db_lost desc nulls last),
                1, 3
            ),
            '; '
        ),
        case when count(*) > 3 then '; …' else '' end
    ) as message
from worst
group by step, recipe
order by step, recipe;
