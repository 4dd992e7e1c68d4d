-- What another scale would do to every histogram: errors in format fmt; scale_of may use columns of tensors.
-- Example: from whatif('E4M3', scale_of := current_scale(amax, 'E4M3') / 4)
-- Records without a non-zero value have no row. Histograms of FP8 payloads are left out: their loss is already there.
create or replace macro whatif(fmt, scale_of) as table
with records as materialized (
    select
        *, row_number() over () as id, fmt as fmt, (scale_of)::float as scale,
        null::float as low_bound, null::double as low_share
    from tensors
    where sampled
)
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq, r.fmt, r.scale,
    s.n, n_nonzero,
    mse(sum_err2, s.n) as mse, sqnr_db(sum_x2, sum_err2) as sqnr_db, rel_l2(sum_x2, sum_err2) as rel_l2,
    cosine(sum_xq, sum_x2, sum_q2) as cosine, gain(sum_xq, sum_x2) as gain,
    ratio(n_underflow, n_nonzero) as underflow, ratio(n_overflow, s.n) as overflow,
    is_exact(sum_err2) as exact, amin, amax, approx
from histogram_sums('records') as s
join records as r using (id)
where n_nonzero > 0;
