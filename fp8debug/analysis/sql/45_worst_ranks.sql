-- On which ranks an operand meets a criterion, in words; nothing in a run of one rank.
-- Internal.
create or replace view worst_ranks as
select recipe, fmt, layer, tensor, ''::varchar as ranks
from sampled_evidence
where false;
