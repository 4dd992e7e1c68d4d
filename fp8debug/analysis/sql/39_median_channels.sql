-- SQNR of the median channel of records that lose many values to underflow, dB from bins of 1; one row a record.
-- Internal.
-- A table: computed once, when it is first named.
-- Outliers that are more than 1 % of the values hide in every sum, that of the smallest 99 % included; a tensor is lost
-- all the same when most of its channels are. Tokens do not tell: each of them may hold the outlier.
create or replace temp table median_channels as
with flushed as (
    select segment, rank, seq, recipe, fmt
    from stored.errors
    where source <> 'payload' and ratio(n_underflow, n_nonzero) > getvariable('underflow')
),
binned as (
    select
        segment, rank, seq, recipe, fmt, bins, n_channels - n_zero as n,
        list_transform(counts, lambda c, i: 2 * list_sum(counts[1:i])) as twice_up_to
    from stored.channels
    semi join flushed using (segment, rank, seq, recipe, fmt)
    where measure = 'sqnr_db' and axis <> 'token'
)
select
    segment, rank, seq, recipe, fmt,
    min(bins[list_position(list_transform(twice_up_to, lambda c: c >= n), true)])::double as channel_db
from binned
group by segment, rank, seq, recipe, fmt;
