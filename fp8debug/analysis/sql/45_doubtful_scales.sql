-- Operands of which any scale is not the plain one: that of the recipe's amax of the micro-batches before.
-- Internal.
-- A table: computed once, when it is first named.
-- In a healthy run it is empty, which spares the rules a closer look at a million records.
create or replace temp table doubtful_scales as
with passes as (
    select
        group_id, step, microbatch, max(amax) as amax, min(scale) as min_scale, max(scale) as max_scale,
        any_value(case when is_most_recent then 1 else coalesce(s.history_len, o.history_len) end)::bigint
            as window_len,
        any_value(top) as top, min(n_rolls) as n_rolls,
        bool_or(gap_status = 'warmup' or history_zeros >= greatest(s.history_len - 1, 1)) as is_zero
    from framework_scales as s
    join framework_operands as o using (segment, rank, layer, tensor, recipe, fmt)
    group by group_id, step, microbatch
),
compared as (
    select
        *, max(amax) over window_before as window_amax, row_number() over in_order - 1 as n_before,
        first(step) over in_order as first_step,
        window_amax is not null and (n_before >= window_len or coalesce(n_rolls <= n_before, false)) as is_whole
    from passes
    window
        in_order as (partition by group_id order by step, microbatch),
        window_before as (
            partition by group_id order by step, microbatch rows between window_len preceding and 1 preceding
        )
)
select distinct group_id
from compared
where window_amax > 0
  and (
      (is_zero and step > first_step) or coalesce(top / max_scale < 0.98 * window_amax, true)
      or (top / min_scale > 1.02 * window_amax and (is_whole or min_scale = 1 or window_len = 1))
  );
