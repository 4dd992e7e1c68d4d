-- One row an operand that a GEMM read in low precision: what its codes and their scale tell, without the tensor itself.
-- recipe: the framework's recipe, in our words; NULL when only the codes are known
-- fmt: element format of the codes
-- status: ok: the tensor was seen in high precision too | payload_only: nothing but this; its errors are unknown
-- n: codes
-- code_amax: largest finite magnitude of the codes, before scale_inv
-- amax: largest finite magnitude in the tensor's own unit, code_amax*scale_inv; NULL with one scale a block
-- scale: factor before the cast; NULL with one scale a block
-- scale_inv: factor that the codes are multiplied with; NULL with one scale a block
-- scale_min: smallest factor before the cast, where there is one a block
-- scale_median: median of those
-- scale_max: largest of those
-- saturated: share of the codes at the largest value of the format or beyond, at which a clipped element ends
-- subnormal: share of the codes that are subnormal
-- zero: share of the codes that are zero
-- n_nan: codes that mean NaN
-- checksum: of the raw bytes; sampled records only
create or replace view payloads as
with codes as (
    select *, payload_fmt(dtype) as fmt
    from records
    where is_payload(dtype) and coalesce(row_class, 'all') = 'all'
),
scaled as (
    select segment, rank, seq, recipe, scale, scale_inv
    from stored.scales
    where source = 'framework'
    qualify row_number() over (partition by segment, rank, seq order by scale is null, recipe) = 1
)
select
    c.segment, c.step, c.microbatch, c.call, c.pass, c.rank, c.layer, c.tensor, c.seq,
    s.recipe, c.fmt, c.status, c.n, c.amax as code_amax, (c.amax * s.scale_inv)::float as amax, s.scale, s.scale_inv,
    b.scale_min, b.scale_median, b.scale_max,
    ratio(k.n_largest + c.n_posinf + c.n_neginf, c.n) as saturated, ratio(k.n_subnormal, c.n) as subnormal,
    ratio(c.n_zero, c.n) as zero, c.n_nan, c.checksum
from codes as c
left join payload_counts as k using (segment, rank, seq)
left join scaled as s using (segment, rank, seq)
left join stored.blocks as b using (segment, rank, seq);
