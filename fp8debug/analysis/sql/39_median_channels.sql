-- SQNR of the median channel of records that lose many values to underflow, dB from bins of 1; one row a record.
-- Internal.
-- A table: computed once, when it is first named, by the reduction of its name.
-- Outliers that are more than 1 % of the values hide in every sum, that of the smallest 99 % included; a tensor is lost
-- all the same when most of its channels are. Tokens do not tell: each of them may hold the outlier.
create or replace temp table median_channels (
    -- with ratio, which must be there first
    segment integer, rank integer, seq bigint, recipe varchar, fmt varchar, channel_db double
);
