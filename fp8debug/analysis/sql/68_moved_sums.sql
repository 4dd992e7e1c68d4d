-- The sums of moved_errors again, under the scale of the group; in a run of several ranks only.
-- Internal.
-- A table: computed once, when it is first named, by the reduction error_sums.
create or replace temp table moved_sums (
    -- of moved_errors, which must be there first
    id integer, n bigint, n_nonzero bigint, n_underflow bigint, n_overflow bigint, sum_x2 double, sum_q2 double,
    sum_xq double, sum_err2 double, n_low bigint, low_sum_x2 double, low_sum_err2 double
);
