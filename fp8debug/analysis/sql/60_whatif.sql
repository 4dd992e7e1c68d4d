-- What another scale would do: error metrics of every histogram in format fmt; scale_of may use columns of tensors.
-- Example: from whatif('E4M3', scale_of := 448 / amax / 4)
create or replace macro whatif(fmt, scale_of) as table
with scaled as (
    select segment, rank, seq, (scale_of)::float as scale from tensors
),
factors as (
    select segment, rank, seq, scale, (1::float / scale)::double as scale_inv
    from scaled
),
products as (
    select
        segment, rank, seq, scale_inv, h.value::double as x, h.count as c, (h.value * scale)::double as a
    from stored.histograms as h
    join factors using (segment, rank, seq)
    where h.counted = 'high'
),
rounded as (
    select *, quantize(a, fmt)::double * scale_inv as q
    from products
),
sums as (
    select
        segment, rank, seq, sum(c) as n, sum(c) filter (x <> 0) as n_nonzero,
        sum(c) filter (x <> 0 and q = 0) as n_underflow, sum(c) filter (overflows(a, fmt)) as n_overflow,
        sum(c * x * x) as sum_x2, sum(c * q * q) as sum_q2, sum(c * x * q) as sum_xq,
        sum(c * (x - q) * (x - q)) as sum_err2
    from rounded
    group by segment, rank, seq
)
select
    t.segment, t.step, t.microbatch, t.call, t.pass, t.rank, t.layer, t.tensor, t.seq, fmt as fmt, f.scale,
    s.n, coalesce(s.n_nonzero, 0) as n_nonzero,
    mse(sum_err2, s.n) as mse, sqnr_db(sum_x2, sum_err2) as sqnr_db, rel_l2(sum_x2, sum_err2) as rel_l2,
    cosine(sum_xq, sum_x2, sum_q2) as cosine, gain(sum_xq, sum_x2) as gain,
    ratio(coalesce(n_underflow, 0), n_nonzero) as underflow, ratio(coalesce(n_overflow, 0), s.n) as overflow,
    is_exact(sum_err2) as exact, t.approx
from sums as s
join factors as f using (segment, rank, seq)
join tensors as t using (segment, rank, seq);
