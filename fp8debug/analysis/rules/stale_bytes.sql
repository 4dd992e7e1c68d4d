-- Low-precision bytes that were kept while the scale they are read with moved on.
/*
severity = "error"
confidence = "certain"
priority = 5
only_if = ["exists (from stored.tensors where contains(dtype, '_'))"]
sentence = "bytes unchanged but scale changed: from step {first_step}, micro-batch {microbatch} on, {effect}"
advice = """Make the cast anew whenever its scale changes, or keep the scale with the bytes: look at caches of FP8 weights (such as Transformer \
Engine's is_first_microbatch) and at what updates the scale between their uses."""
symptom = "gradient accumulation in FP8 does worse than the same batch at once"
why = """
A low-precision copy is only worth anything with the scale that it was made with. Where the bytes are kept, say over the micro-batches of a \
step, and the scale is updated in between, every value comes back multiplied by the ratio of the two scales. The cosine with the right \
tensor stays near 1, so that only the gain shows it.

The bytes are compared by a checksum that is taken before anything is rounded. Equal bytes under another scale are right where the tensor \
itself became larger by the same factor: where it was seen in high precision, its gain decides.
"""
explains = [
    "payload_gain", "weights_lag", "rank_gain", "clipping", "clipping_spike", "underflow", "gain_off", "sqnr_low",
    "gemm_error", "block_gain", "stale_scale", "frozen_scale",
]

[[evidence]]
column = "gain"
title = "gain of what the GEMM read"
healthy = "{own_gain:.3f}"
format = ".3g"

[[evidence]]
column = "sqnr_db"
title = "SQNR of what the GEMM read, dB"
healthy = "{own_sqnr_db:.1f}"
format = ".2f"

[[evidence]]
column = "scale_ratio"
title = "scale now / scale of the bytes"
healthy = "1"
format = ".4g"
*/
with stale as (
    select
        layer, tensor, recipe, rank, min(step) as first_step, count(distinct step) as n_steps,
        min_by(microbatch, (segment, step, microbatch)) as microbatch,
        arg_max(gain, abs(gain - 1)) as gain, min(sqnr_db) as sqnr_db, any_value(own_gain) as own_gain,
        any_value(own_sqnr_db) as own_sqnr_db, min_by(scale_ratio, (segment, step, microbatch)) as scale_ratio
    from checked_payloads
    where is_stale
    group by layer, tensor, recipe, rank
),
seen as (
    select layer, tensor, recipe, rank, max(step) filter (is_stale or (bytes_unchanged and differs)) as last_step,
        count(distinct step) as n_observed_steps
    from checked_payloads
    where bytes_unchanged is not null
    group by layer, tensor, recipe, rank
)
select
    s.* exclude (own_gain, own_sqnr_db), n.last_step, n.n_observed_steps, coalesce(own_gain, 1) as own_gain,
    coalesce(own_sqnr_db, getvariable('baseline_e4m3')) as own_sqnr_db,
    greatest(coalesce(own_sqnr_db, getvariable('baseline_e4m3')) - sqnr_db, 0) as db_lost,
    coalesce(
        format('the GEMM reads {:.3g} times the values (SQNR {:.2f} dB)', gain, sqnr_db),
        format('the same codes mean {:.3g} times what they meant', 1 / scale_ratio)
    ) as effect,
    case when gain is null then 'likely' end as confidence,
    case when gain is null then 'the tensor in high precision: without it, it may itself have changed by that factor' end
        as needs,
    'bytes' as cause
from stale as s
join seen as n on (s.layer, s.tensor, s.rank) = (n.layer, n.tensor, n.rank) and s.recipe is not distinct from n.recipe
