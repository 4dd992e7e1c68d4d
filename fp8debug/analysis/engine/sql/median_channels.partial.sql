-- The median channel of each record, from its bins.
-- given: segment, rank, seq, recipe, fmt
with binned as (
    select
        segment, rank, seq, recipe, fmt, bins, n_channels - n_zero as n,
        list_transform(counts, lambda c, i: 2 * list_sum(counts[1:i])) as twice_up_to
    from stored.channels
    semi join given using (segment, rank, seq, recipe, fmt)
    where measure = 'sqnr_db' and axis <> 'token'
)
select
    segment, rank, seq, recipe, fmt,
    min(bins[list_position(list_transform(twice_up_to, lambda c: c >= n), true)])::double as channel_db
from binned
group by segment, rank, seq, recipe, fmt
