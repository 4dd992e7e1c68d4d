-- Mean and kurtosis of the values of each record of valid or padding rows.
-- Internal.
-- A table: computed once, when it is first named, by the reduction of its name.
create or replace temp table row_class_moments (
    -- of records, which must be there first
    segment integer, rank integer, seq bigint, mean double, kurtosis double
);
