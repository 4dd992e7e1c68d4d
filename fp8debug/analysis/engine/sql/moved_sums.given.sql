-- The scales of groups, for records of which other scales were in force.
select id, segment, rank, seq, fmt, group_scale as scale
from moved_errors
