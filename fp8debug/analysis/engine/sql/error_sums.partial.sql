-- Error sums of histograms under given scales, as in the table errors; one row an id.
-- given: id, segment, rank, seq, fmt, scale; a record may have several
with given_records as materialized (
    select segment, rank, seq, (row_number() over ())::int as record
    from (select distinct segment, rank, seq from given)
),
bounds as materialized (
    from low_bounds('given_records')
),
bounded as materialized (
    select g.id, segment, rank, seq, g.fmt, g.scale, b.low_bound, b.low_share
    from given as g
    join given_records as r using (segment, rank, seq)
    left join bounds as b using (record)
)
select
    id, n, n_nonzero, n_underflow, n_overflow, sum_x2, sum_q2, sum_xq, sum_err2, n_low, low_sum_x2, low_sum_err2
from histogram_sums('bounded')
