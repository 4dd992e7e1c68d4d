-- Error sums of each record under the delayed scale of its group: those recorded where the rank's own scale is that.
create or replace temp table group_sums as
select e.* replace ('group' as scale_scope)
from stored.errors as e
join group_members as m using (segment, rank, seq)
join group_replay as r using (id, recipe, fmt)
semi join tensors using (segment, rank, seq)
where e.source = 'simulated' and r.scale is not null and e.scale is not distinct from r.scale
union all by name
select
    m.* exclude (
        id, group_scale, counted_approx, n, n_nonzero, n_underflow, n_overflow, sum_x2, sum_q2, sum_xq, sum_err2,
        n_low, low_sum_x2, low_sum_err2
    ) replace ('group' as scale_scope, group_scale as scale, counted_approx as approx),
    s.* exclude (id)
from moved_errors as m
join moved_sums as s using (id);
