-- Operands of which any scale may not be the plain one: that of the recipe's amax of the micro-batches before.
-- Internal.
-- A table: computed once, when it is first named.
-- In a healthy run it is empty, which spares the rules a closer look at a million records. Every record is compared by
-- itself with the passes before its own, so that they need not be merged first.
create or replace temp table doubtful_scales as
with placed as (
    select
        group_id, step, microbatch, amax, scale, n_rolls, top,
        (case when is_most_recent then 1 else coalesce(s.history_len, o.history_len) end)::bigint as window_len,
        gap_status = 'warmup' or history_zeros >= greatest(s.history_len - 1, 1) as is_zero
    from framework_scales as s
    join framework_operands as o using (segment, rank, layer, tensor, recipe, fmt)
),
compared as (
    select
        *, max(amax) over window_before as window_amax, dense_rank() over in_order - 1 as n_before,
        first(step) over in_order as first_step,
        window_amax is not null and (n_before >= window_len or coalesce(n_rolls <= n_before, false)) as is_whole
    from placed
    window
        in_order as (partition by group_id order by step, microbatch),
        window_before as (
            partition by group_id order by step, microbatch groups between window_len preceding and 1 preceding
        )
)
select distinct group_id
from compared
where window_amax > 0
  and (
      (is_zero and step > first_step) or coalesce(top / scale < 0.98 * window_amax, true)
      or (top / scale > 1.02 * window_amax and (is_whole or scale = 1 or window_len = 1))
  );
