-- One row a pass and tensor of a reduction group, with its amax; filled in a run of several ranks only.
-- Internal.
-- id: names the pass
-- amax: largest magnitude over the group as scaling kernels see it; NULL where a piece of the group is unknown
-- rank: the one with the largest amax; seq: its record
-- members: the records of the group
create or replace temp table group_passes (
    id bigint, segment integer, step bigint, microbatch integer, call integer, pass varchar, layer varchar,
    tensor varchar, amax float, rank integer, seq bigint, n_shards bigint, n_nonzero bigint, sampled boolean,
    members struct(rank integer, seq bigint)[], first_seq bigint
);
