-- How many codes of each payload are at the largest value of its format or beyond, and how many are subnormal.
-- Internal.
-- A table: computed once, when it is first named, by the reduction of its name.
create or replace temp table payload_counts (
    -- of records, with is_payload and payload_fmt, which must be there first
    segment integer, rank integer, seq bigint, n_largest bigint, n_subnormal bigint
);
