-- How the magnitudes of histograms are spread over octaves, before a cast and after it, scaled back.
-- Internal.
-- records names a relation with segment, rank, seq, fmt and scale, and any columns more, all of which are kept; where
-- scale is NULL nothing is known of what is left after it. A record may be in it several times, under several scales.
-- Values of equal octaves before and after are added first: a value is in two rows of the result.
create or replace macro octaves_of(records) as table
with counted as (
    -- A zero stays one even where the inverse of the scale is infinite.
    select
        r.*, octave_of(h.value) as octave_before,
        octave_of(case when h.value = 0 then 0::float else fake_quantize(h.value, r.scale, r.fmt) end) as octave_after,
        sum(h.count)::bigint as n_elements,
        coalesce(sum(h.count) filter (overflows(h.value * r.scale, r.fmt)), 0)::bigint as n_beyond
    from stored.histograms as h
    join query_table(records) as r using (segment, rank, seq)
    where h.counted = 'high'
    group by all
),
sides as (
    select unnest([false, true]) as is_after
)
select
    c.* exclude (octave_before, octave_after, n_elements, n_beyond),
    case when is_after then octave_after else octave_before end as octave,
    sum(case when is_after then 0 else n_elements end)::bigint as n_before,
    sum(case when is_after then n_elements when c.scale is not null then 0 end)::bigint as n_after,
    sum(case when c.scale is not null then case when is_after then 0 else n_beyond end end)::bigint as n_overflow
from counted as c, sides
where not is_after or c.scale is not null
group by all;
