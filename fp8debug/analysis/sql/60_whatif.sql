-- What another scale would do to every histogram: errors in format fmt; scale_of may use columns of tensors.
-- Example: from whatif('E4M3', scale_of := current_scale(amax, 'E4M3') / 4)
-- Records without a non-zero value have no row. Histograms of FP8 payloads are left out: their loss is already there.
create or replace macro whatif(fmt, scale_of) as table
with records as (
    select *, n - n_nan - n_posinf - n_neginf as n_finite, (scale_of)::float as scale, 1::float / scale as scale_inv
    from tensors
    where sampled
),
scaled as (
    select segment, rank, seq, r.scale_inv, h.value::double as x, h.count as c, h.value * r.scale as a
    from stored.histograms as h
    join records as r using (segment, rank, seq)
    where h.counted = 'high' and h.value <> 0
),
rounded as (
    select *, quantize(a, fmt) as code from scaled
),
dequantized as (
    select *, (code * scale_inv)::double as q from rounded
),
sums as (
    select
        segment, rank, seq, sum(c) as n_nonzero,
        sum(c) filter (q = 0) as n_zeroed, sum(c) filter (overflows(a, fmt)) as n_clipped,
        sum(c * x * x) as sum_x2, sum(c * q * q) as sum_q2, sum(c * x * q) as sum_xq,
        sum(c * (x - q) * (x - q)) as sum_err2
    from dequantized
    group by segment, rank, seq
)
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq, fmt as fmt, r.scale,
    n_finite as n, n_nonzero,
    mse(sum_err2, n_finite) as mse, sqnr_db(sum_x2, sum_err2) as sqnr_db, rel_l2(sum_x2, sum_err2) as rel_l2,
    cosine(sum_xq, sum_x2, sum_q2) as cosine, gain(sum_xq, sum_x2) as gain,
    ratio(coalesce(n_zeroed, 0), n_nonzero) as underflow, ratio(coalesce(n_clipped, 0), n_finite) as overflow,
    is_exact(sum_err2) as exact, amin, amax, approx
from sums as s
join records as r using (segment, rank, seq);
