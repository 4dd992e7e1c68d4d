-- Sampled: valid and padding rows of a tensor side by side, both under the scale of the whole; one row a recipe.
-- n_valid: elements in valid rows
-- n_padding: elements in padding rows
-- scale: scale of the whole tensor
-- amax: largest magnitude of the whole tensor
-- valid_amax: largest magnitude in valid rows
-- padding_amax: largest magnitude in padding rows
-- scale_gap_bits: gap of the whole tensor
-- valid_scale_gap_bits: log2(scale / scale that the valid rows alone would have)
-- padding_scale_gap_bits: log2(scale / scale that the padding rows alone would have)
-- valid_sqnr_db: signal to quantisation noise of the valid rows, dB
-- padding_sqnr_db: the same of the padding rows
-- valid_underflow: share of the non-zero values in valid rows that become zero
-- padding_underflow: the same of the padding rows; NULL when they are all zero
-- valid_overflow: share of the values in valid rows beyond the largest finite value of the format
-- padding_overflow: the same of the padding rows
-- valid_gain: factor by which the values of valid rows come back; 1 is right
-- padding_gain: the same of the padding rows
-- valid_cosine: between the valid rows and what is left of them
-- padding_cosine: the same of the padding rows
-- valid_mean: mean of the finite values in valid rows
-- padding_mean: the same of the padding rows
-- valid_kurtosis: fourth central moment over the squared variance, of the valid rows; 3 for a normal distribution
-- padding_kurtosis: the same of the padding rows; NULL when they are all equal
create or replace view row_classes as
with classes as (
    select * from records where row_class in ('valid', 'padding')
),
measured as (
    select
        c.segment, c.step, c.microbatch, c.call, c.pass, c.rank, c.layer, c.tensor, c.row_class, c.n, c.amax,
        e.recipe, e.fmt, e.alternate, e.source, e.scale, m.mean, m.kurtosis,
        gap_bits(e.scale, kernel_amax(c.amax, c.n_posinf, c.n_neginf), e.fmt) as bits,
        sqnr_db(e.sum_x2, e.sum_err2) as sqnr_db, gain(e.sum_xq, e.sum_x2) as gain,
        cosine(e.sum_xq, e.sum_x2, e.sum_q2) as cosine,
        ratio(e.n_underflow, e.n_nonzero) as underflow, ratio(e.n_overflow, e.n) as overflow
    from classes as c
    join stored.errors as e using (segment, rank, seq)
    left join row_class_moments as m using (segment, rank, seq)
),
side_by_side as (
    select
        segment, step, microbatch, call, pass, rank, layer, tensor, recipe, fmt, alternate, source, scale,
        coalesce(any_value(n) filter (row_class = 'valid'), 0) as n_valid,
        coalesce(any_value(n) filter (row_class = 'padding'), 0) as n_padding,
        any_value(amax) filter (row_class = 'valid') as valid_amax,
        any_value(amax) filter (row_class = 'padding') as padding_amax,
        any_value(bits) filter (row_class = 'valid') as valid_scale_gap_bits,
        any_value(bits) filter (row_class = 'padding') as padding_scale_gap_bits,
        any_value(sqnr_db) filter (row_class = 'valid') as valid_sqnr_db,
        any_value(sqnr_db) filter (row_class = 'padding') as padding_sqnr_db,
        any_value(underflow) filter (row_class = 'valid') as valid_underflow,
        any_value(underflow) filter (row_class = 'padding') as padding_underflow,
        any_value(overflow) filter (row_class = 'valid') as valid_overflow,
        any_value(overflow) filter (row_class = 'padding') as padding_overflow,
        any_value(gain) filter (row_class = 'valid') as valid_gain,
        any_value(gain) filter (row_class = 'padding') as padding_gain,
        any_value(cosine) filter (row_class = 'valid') as valid_cosine,
        any_value(cosine) filter (row_class = 'padding') as padding_cosine,
        any_value(mean) filter (row_class = 'valid') as valid_mean,
        any_value(mean) filter (row_class = 'padding') as padding_mean,
        any_value(kurtosis) filter (row_class = 'valid') as valid_kurtosis,
        any_value(kurtosis) filter (row_class = 'padding') as padding_kurtosis
    from measured
    group by all
)
select
    s.segment, s.step, s.microbatch, s.call, s.pass, s.rank, s.layer, s.tensor, t.seq,
    s.recipe, s.fmt, s.alternate, s.source, s.n_valid, s.n_padding, s.scale, t.amax, s.valid_amax, s.padding_amax,
    gap_bits(s.scale, kernel_amax(t.amax, t.n_posinf, t.n_neginf), s.fmt) as scale_gap_bits,
    s.* exclude (
        segment, step, microbatch, call, pass, rank, layer, tensor, recipe, fmt, alternate, source, n_valid, n_padding,
        scale, valid_amax, padding_amax
    )
from side_by_side as s
join tensors as t using (segment, step, microbatch, call, pass, rank, layer, tensor);
