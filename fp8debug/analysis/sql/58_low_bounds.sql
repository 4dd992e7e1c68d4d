-- Where the smallest 99 % of a record's non-zero values end: all below low_bound, and low_share of those that equal it.
-- Internal.
-- records names a relation with record, segment, rank, seq. Octaves first: only the values of one of them need sorting.
-- A record with fewer than two non-zero values has no row.
create or replace macro low_bounds(records) as table
with bins as (
    select r.record, abs(h.value) as magnitude, floor(log2(magnitude::double)) as octave, h.count as c
    from stored.histograms as h
    join query_table(records) as r using (segment, rank, seq)
    where h.counted = 'high' and h.value <> 0
),
octaves as (
    select record, octave, sum(c)::bigint as c
    from bins
    group by record, octave
),
last_octave as (
    select record, octave, up_to - c as below, n_low
    from (
        select
            *, sum(c) over (partition by record order by octave) as up_to,
            (sum(c) over (partition by record))::bigint * 99 // 100 as n_low
        from octaves
    )
    where n_low > below and n_low <= up_to
),
magnitudes as (
    select record, magnitude, any_value(below) as below, any_value(n_low) as n_low, sum(c)::bigint as c
    from bins
    join last_octave using (record, octave)
    group by record, magnitude
)
select record, magnitude as low_bound, ((n_low - (up_to - c)) / c)::double as low_share
from (select *, below + sum(c) over (partition by record order by magnitude) as up_to from magnitudes)
where n_low > up_to - c and n_low <= up_to;
