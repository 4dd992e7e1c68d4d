-- Sampled: how many elements of each record are in each octave, before a per-tensor recipe and after it, scaled back.
-- Example: select octave, sum(n_before), sum(n_after) from octaves where layer = 'l' and recipe = 'current' group by 1
-- Each record is there once for each recipe and format whose scale is known, and once with recipe NULL, as it is.
-- recipe: per-tensor recipe of n_after; NULL: the record as it is
-- fmt: element format of n_after
-- alternate: true where fmt is recorded beside the recipe's own
-- scale: factor before the cast
-- octave: e of the magnitudes from 2^e to below 2^(e+1); NULL: zeros, 128: not finite any more
-- n_before: finite elements in this octave
-- n_after: elements in this octave once cast and scaled back
-- n_overflow: those of n_before beyond the largest finite value of the format
create or replace view octaves as
from octaves_of('cast_records');
