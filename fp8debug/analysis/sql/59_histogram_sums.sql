-- Error sums of histograms under given scales, as in the table errors; one row an id.
-- Internal.
-- scales names a relation with id, segment, rank, seq, fmt, scale, low_bound, low_share; a record may have several.
create or replace macro histogram_sums(scales) as table
with scaled as (
    select
        s.id, s.fmt, h.value, h.count as c, h.value * s.scale as a, 1::float / s.scale as scale_inv,
        c * case when abs(h.value) < s.low_bound then 1 when abs(h.value) = s.low_bound then s.low_share else 0 end
            as low
    from stored.histograms as h
    join query_table(scales) as s using (segment, rank, seq)
    where h.counted = 'high'
),
rounded as (
    -- A zero stays one even where the inverse of the scale is infinite.
    select
        *, value::double as x,
        (case when value = 0 then 0::float else quantize(a, fmt) * scale_inv end)::double as q
    from scaled
)
select
    id, sum(c)::bigint as n, coalesce(sum(c) filter (x <> 0), 0)::bigint as n_nonzero,
    coalesce(sum(c) filter (x <> 0 and q = 0), 0)::bigint as n_underflow,
    coalesce(sum(c) filter (overflows(a, fmt)), 0)::bigint as n_overflow,
    sum(c * x * x) as sum_x2, sum(c * q * q) as sum_q2, sum(c * x * q) as sum_xq,
    sum(c * (x - q) * (x - q)) as sum_err2, n_nonzero * 99 // 100 as n_low,
    sum(low * x * x) as low_sum_x2, sum(low * (x - q) * (x - q)) as low_sum_err2
from rounded
group by id;
