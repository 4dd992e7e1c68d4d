-- Operands whose largest magnitude is so small that maximum/amax overflows FP32: no scale fits them.
-- Internal.
-- A table: computed once, when it is first named.
-- fmt: the format of the hybrid recipe, whose maximum decides
-- min_amax: the smallest such amax
create or replace temp table degenerate_operands as
select
    layer, tensor, case when tensor = 'dy' then 'E5M2' else 'E4M3' end as fmt,
    count(distinct step) as n_steps, min(step) as first_step, max(step) as last_step, min(amax) as min_amax
from tensors
where amax > 0 and amax < 1.7e-34 and tensor in ('x', 'w', 'dy') and is_judged_pass(pass)
  and isinf((fmt_max(case when tensor = 'dy' then 'E5M2' else 'E4M3' end) / amax)::float)
group by layer, tensor;
