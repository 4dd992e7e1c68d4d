-- Whether an amax is the one of a rank, the one over ranks, or between the two, to 2 %; false where one is unknown.
-- Internal.
create or replace macro is_near(amax, of_rank, over_ranks) as
    coalesce(amax between 0.98 * of_rank and 1.02 * over_ranks, false);
