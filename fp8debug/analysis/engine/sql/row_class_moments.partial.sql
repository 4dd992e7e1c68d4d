-- Mean and kurtosis of the values of each record.
-- given: segment, rank, seq
with weighted as (
    select
        h.segment, h.rank, h.seq, h.value::double as x, h.count as c,
        sum(x * c) over record / sum(c) over record as mean
    from stored.histograms as h
    semi join given using (segment, rank, seq)
    where h.counted = 'high'
    window record as (partition by h.segment, h.rank, h.seq)
)
select
    segment, rank, seq, any_value(mean) as mean,
    ratio(sum(c) * sum(power(x - mean, 4) * c), power(sum(power(x - mean, 2) * c), 2)) as kurtosis
from weighted
group by segment, rank, seq
