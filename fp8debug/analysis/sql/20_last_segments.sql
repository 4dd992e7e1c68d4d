-- Which segment (resume) counts for each step: the last one that wrote it.
-- Internal.
create or replace view last_segments as
select step, max(segment) as segment
from (select step, segment from stored.tensors union all select step, segment from stored.steps)
group by step;
