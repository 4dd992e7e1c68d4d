-- Hits that are no candidate: one line a step and recipe.
-- n_operands: operands that hit in this step
-- db_lost: largest over those operands
-- message: the step in words, its worst operands named
create or replace view isolated_hits as
with isolated as (
    select
        s.*, array_to_string(criteria_list(s.by_gap, s.by_underflow, false, s.by_gain, s.by_sqnr), ', ') as criteria
    from operand_steps as s
    join operands as o using (level, recipe, fmt, layer, tensor)
    where level = 'hit' and (s.is_hit or s.is_gap_hit) and not o.is_persistent
)
select
    step, recipe, count(*) as n_operands, max(db_lost) as db_lost,
    format(
        'step {}: {} hit once under {}: {}{}', step,
        case when count(*) = 1 then '1 operand' else count(*) || ' operands' end, recipe,
        array_to_string(
            list_slice(list(format('{} {} ({})', layer, tensor, criteria) order by db_lost desc nulls last), 1, 3), '; '
        ),
        case when count(*) > 3 then '; …' else '' end
    ) as message
from isolated
group by step, recipe
order by step, recipe;
