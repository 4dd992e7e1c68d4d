-- Sampled records, each once as it is (recipe NULL) and once a per-tensor recipe of which its scale is known.
-- Internal.
-- Recipes that are more than a scale and a cast are left out: what they leave of a value does not follow from these.
create or replace view cast_records as
select
    segment, step, microbatch, call, pass, rank, layer, tensor, seq,
    null::varchar as recipe, null::varchar as fmt, null::boolean as alternate, null::float as scale, approx
from tensors
where sampled
union all by name
select
    t.segment, t.step, t.microbatch, t.call, t.pass, t.rank, t.layer, t.tensor, t.seq,
    e.recipe, e.fmt, e.alternate, e.scale, t.approx
from tensors as t
join judged_errors as e using (segment, rank, seq)
where t.sampled and e.scale is not null and e.source <> 'payload' and is_plain_cast(e.recipe, e.fmt);
