-- Which segment (resume) counts for each step: the last one that wrote it.
-- Internal.
-- A table: computed once, when it is first named, since nearly every view asks for it.
create or replace temp table last_segments as
select step, max(segment) as segment
from (select step, segment from stored.tensors union all select step, segment from stored.steps)
group by step;
