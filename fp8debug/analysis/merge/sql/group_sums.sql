-- Error sums of each record under the delayed scale of its group: those recorded where the rank's own scale is that.
create or replace temp table group_sums as
with recorded as (
    select e.*, r.scale as group_scale, t.approx as counted_approx
    from stored.errors as e
    join group_members as m using (segment, rank, seq)
    join group_replay as r using (id, recipe, fmt)
    join tensors as t using (segment, rank, seq)
    where e.source = 'simulated' and r.scale is not null
),
moved as materialized (
    select *, (row_number() over ())::int as id
    from recorded
    where scale is distinct from group_scale
),
moved_records as materialized (
    select segment, rank, seq, (row_number() over ())::int as record
    from (select distinct segment, rank, seq from moved)
),
bounds as materialized (
    from low_bounds('moved_records')
),
moved_scales as materialized (
    select m.id, segment, rank, seq, m.fmt, m.group_scale as scale, b.low_bound, b.low_share
    from moved as m
    join moved_records as r using (segment, rank, seq)
    left join bounds as b using (record)
),
summed as (
    from histogram_sums('moved_scales')
)
select * exclude (group_scale, counted_approx) replace ('group' as scale_scope)
from recorded
where scale is not distinct from group_scale
union all by name
select
    m.* exclude (
        id, group_scale, counted_approx, n, n_nonzero, n_underflow, n_overflow, sum_x2, sum_q2, sum_xq, sum_err2,
        n_low, low_sum_x2, low_sum_err2
    ) replace ('group' as scale_scope, group_scale as scale, counted_approx as approx),
    s.* exclude (id)
from moved as m
join summed as s using (id);
