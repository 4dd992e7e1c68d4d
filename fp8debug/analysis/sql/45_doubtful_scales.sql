-- Operands of which any scale is not the plain one: that of the largest amax of the window, over ranks.
-- Internal.
-- A table: computed once, when it is first named.
-- In a healthy run it is empty, which spares the rules a closer look at a million records.
create or replace temp table doubtful_scales as
with passes as (
    select
        group_id, step, microbatch, max(amax) as amax, min(scale) as min_scale, max(scale) as max_scale,
        any_value(coalesce(s.history_len, o.history_len))::bigint as window_len, any_value(top) as top,
        bool_or(gap_status = 'warmup' or history_zeros >= greatest(s.history_len - 1, 1)) as is_zero
    from framework_scales as s
    join framework_operands as o using (segment, rank, layer, tensor, recipe, fmt)
    group by group_id, step, microbatch
),
compared as (
    select
        *, max(amax) over (
            partition by group_id order by step, microbatch rows between window_len preceding and 1 preceding
        ) as window_amax
    from passes
)
select distinct group_id
from compared
where window_amax > 0
  and (is_zero or not (is_near(top / min_scale, window_amax, window_amax)
                       and is_near(top / max_scale, window_amax, window_amax)));
