-- Sampled: each payload against the tensor it was made of, and against the last payload of the same operand.
-- recipe: the framework's recipe, in our words
-- fmt: element format of the codes
-- scale: factor before the cast; NULL with one scale a block
-- last_scale: the same of the operand's last sampled payload
-- scale_ratio: scale / last_scale; of the medians with one scale a block
-- bytes_unchanged: the codes are those of the last payload, bit for bit
-- is_stale: the bytes are unchanged while the scale changed, and the tensor itself does not explain it
-- gain: factor by which values come back in what the GEMM read; 1 is right
-- sqnr_db: signal to quantisation noise of what the GEMM read, dB
-- underflow: share of the non-zero values that are zero in what the GEMM read
-- own_gain: what our own cast of the tensor at that scale gives
-- own_sqnr_db: what our own cast of the tensor at that scale gives, dB
-- differs: what the GEMM read is not what this scale should have given
-- reason: why gain and SQNR are NULL: payload_only: there is no tensor in high precision | not_compared
create or replace view payload_checks as
with held as (
    select
        *, lag(scale) over same as last_scale, lag(checksum) over same as last_checksum,
        -- With one scale a block the median stands for them, where any of the three figures moved.
        case when scale is not null then scale else scale_median end as any_scale,
        lag(any_scale) over same as last_any_scale,
        [scale, scale_min, scale_median, scale_max]
            is distinct from lag([scale, scale_min, scale_median, scale_max]) over same as is_rescaled,
        coalesce(n * (1 - zero), 0) >= getvariable('min_nonzero') as is_large
    from payloads
    where checksum is not null
    window same as (partition by rank, layer, tensor, fmt order by segment, seq)
),
whole as (
    select p.segment, p.rank, p.seq, max(t.seq) as value_seq
    from held as p
    join tensors as t using (segment, step, microbatch, call, pass, rank, layer, tensor)
    where t.seq < p.seq
    group by p.segment, p.rank, p.seq
),
own as (
    select segment, rank, seq, recipe, fmt, gain(sum_xq, sum_x2) as own_gain, sqnr_db(sum_x2, sum_err2) as own_sqnr_db
    from stored.errors
    where source <> 'payload'
),
compared as (
    select
        p.*, p.checksum = p.last_checksum as bytes_unchanged,
        gain(e.sum_xq, e.sum_x2) as gain, sqnr_db(e.sum_x2, e.sum_err2) as sqnr_db,
        ratio(e.n_underflow, e.n_nonzero) as underflow, o.own_gain, o.own_sqnr_db,
        2 * coalesce(per_fmt(p.fmt, 1 / 17, 1 / 9), 1 / 5) as gain_bound,
        abs(last_any_scale / any_scale - 1) as moved
    from held as p
    left join whole as w using (segment, rank, seq)
    left join stored.errors as e
        on (e.segment, e.rank, e.seq) = (p.segment, p.rank, w.value_seq) and e.source = 'payload'
    left join own as o
        on (o.segment, o.rank, o.seq) = (p.segment, p.rank, w.value_seq) and (o.recipe, o.fmt) = (p.recipe, p.fmt)
)
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq, recipe, fmt, scale, last_scale,
    any_scale::double / last_any_scale as scale_ratio, bytes_unchanged,
    bytes_unchanged and is_rescaled and any_scale > 0 and last_any_scale > 0 and code_amax > 0
    and case
        -- A new cast of that many values cannot give the same bytes; the tensor may have grown by that very factor.
        when is_large and moved > 0.01 then not coalesce(abs(gain / coalesce(own_gain, 1) - 1) <= moved / 2, false)
        else not coalesce(abs(gain - 1) <= gain_bound, false)
    end as is_stale,
    gain, sqnr_db, underflow, own_gain, own_sqnr_db,
    coalesce(is_stale, false)
    or coalesce(abs(gain - coalesce(own_gain, 1)) > gain_bound * least(abs(coalesce(own_gain, 1)), 1), false)
        as differs,
    case when gain is null then case status when 'payload_only' then status else 'not_compared' end end as reason
from compared;
