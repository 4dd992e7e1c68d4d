-- As in a run of one rank, but sums under simulated delayed scales are those under the group's scale.
create or replace view judged_errors as
select e.*
from stored.errors as e
join group_members as m using (segment, rank, seq)
where m.id is null or e.source <> 'simulated' or e.recipe not in (select recipe from group_replay)
union all by name
select * from group_sums;
