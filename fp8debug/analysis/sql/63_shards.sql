-- The records that are merged over ranks: one for each distinct piece of a tensor, the lowest rank's of its replicas.
-- Partial sums are in none. Where the lowest rank left no record, the next one's stands for the piece.
-- owner: lowest rank that holds the same data, recorded or not
create or replace view shards as
from shards_of('tensors');
