-- Operands whose delayed scale the framework recorded, numbered: one row an operand, recipe, format, rank and segment.
-- Internal.
-- A table: computed once, when it is first named.
-- id: names the operand on its rank
-- group_id: the same for all ranks
-- history_len: window length that the recipe names
-- top: largest value that the scale should give: the format's maximum, the margin taken off
create or replace temp table framework_operands as
select
    *, row_number() over () as id, dense_rank() over (order by segment, layer, tensor, recipe, fmt) as group_id,
    contains(recipe, 'most_recent') as is_most_recent,
    coalesce(nullif(regexp_extract(recipe, 'amax_history_len=(\d+)', 1), '')::int, 1024) as history_len,
    fmt_max(fmt)::double
    * power(2, -coalesce(nullif(regexp_extract(recipe, 'margin=(-?\d+)', 1), '')::int, 0)) as top
from (
    select distinct segment, rank, layer, tensor, recipe, fmt
    from judged_scales
    where source = 'framework' and not alternate and starts_with(recipe, 'delayed')
);
