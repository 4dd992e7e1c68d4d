-- Hits that are no candidate: one line a step and recipe.
-- n_operands: operands that hit in this step
-- db_lost: largest over those operands
-- message: the step in words, its worst operands named
create or replace view isolated_hits as
with isolated as (
    select
        e.step, e.recipe, e.layer, e.tensor, max(e.db_lost) as db_lost,
        criteria_list(bool_or(e.hit_gap), bool_or(e.hit_underflow), false, bool_or(e.hit_gain), bool_or(e.hit_sqnr))
            as criteria,
        format('{} {} ({})', e.layer, e.tensor, array_to_string(criteria, ', ')) as what
    from evidence as e
    join operands as o using (recipe, fmt, layer, tensor)
    where not e.alternate
      and (e.hit_gap or e.hit_underflow or e.hit_gain or e.hit_sqnr)
      and o.level = 'hit' and not o.is_persistent
    group by e.step, e.recipe, e.fmt, e.layer, e.tensor
)
select
    step, recipe, count(*) as n_operands, max(db_lost) as db_lost,
    format(
        'step {}: {} hit once under {}: {}{}', step,
        case when count(*) = 1 then '1 operand' else count(*) || ' operands' end, recipe,
        array_to_string(list_slice(list(what order by db_lost desc nulls last), 1, 3), '; '),
        case when count(*) > 3 then '; …' else '' end
    ) as message
from isolated
group by step, recipe
order by step, recipe;
