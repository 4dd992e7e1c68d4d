-- Sampled: one row a record, recipe and format with every error metric, its scale and the scales beside it.
-- delayed_scale: scale of this recipe when it has a history, else of the run's first such recipe
-- gap_source: framework | simulated: whose scale the gap is about
create or replace view tensor_errors as
select
    r.* exclude (is_stateful),
    case when r.is_stateful then r.scale else d.scale end as delayed_scale,
    case when r.scale_gap_bits is not null then r.source end as gap_source
from error_ratios as r
left join (
    select segment, rank, seq, fmt, arg_min(scale, recipe) as scale
    from judged_scales
    group by segment, rank, seq, fmt
) as d using (segment, rank, seq, fmt);
