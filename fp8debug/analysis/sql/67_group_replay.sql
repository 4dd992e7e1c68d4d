-- The delayed scale of each group, replayed over the largest amax of its ranks; in a run of several ranks only.
-- Internal.
create or replace temp table group_replay (
    -- of group_passes, which must be there first
    id bigint, recipe varchar, fmt varchar, alternate boolean, scale float, amax_used float, history_len integer,
    history_zeros integer, n_rolls bigint, set_at_step bigint, status varchar
);
