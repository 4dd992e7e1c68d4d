-- Candidates that a rule may speak of: not those whose magnitudes are too small for any scale.
-- Internal.
-- A table: computed once, when it is first named.
create or replace temp table told_candidates as
select c.*
from candidates as c
left join degenerate_operands as d on (d.layer, d.tensor) = (c.layer, c.tensor)
where coalesce(d.n_steps, 0) < greatest(c.n_hit_steps, c.n_gap_hit_steps);
