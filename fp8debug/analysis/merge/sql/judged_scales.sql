-- As in a run of one rank, but simulated scales are the group's: replayed over the largest amax of its ranks.
create or replace view judged_scales as
select
    s.* replace (
        case when r.id is null then s.scope else 'group' end as scope,
        case when r.id is null then s.scale else r.scale end as scale,
        case when r.id is null then s.scale_inv else (1::float / r.scale) end as scale_inv,
        case when r.id is null then s.amax_used else r.amax_used end as amax_used,
        case when r.id is null then s.history_len else r.history_len end as history_len,
        case when r.id is null then s.history_zeros else r.history_zeros end as history_zeros,
        case when r.id is null then s.n_rolls else r.n_rolls end as n_rolls,
        case when r.id is null then s.set_at_step else r.set_at_step end as set_at_step,
        case when r.id is null then s.status else r.status end as status
    ),
    r.id is null or (p.rank = s.rank and p.seq = s.seq) as sets_amax, p.n_nonzero as n_group_nonzero
from stored.scales as s
left join group_members as m using (segment, rank, seq)
left join group_replay as r on r.id = m.id and r.recipe = s.recipe and r.fmt = s.fmt and s.source = 'simulated'
left join group_passes as p on p.id = r.id
where m.seq is not null or s.source <> 'simulated';
