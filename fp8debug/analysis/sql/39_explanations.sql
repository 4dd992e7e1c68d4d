-- What could make values come back by a wrong factor: one row an operand and hypothesis, with what it explains.
-- Internal.
-- A table: computed once, when it is first named.
-- ratio is the scale that the codes were made with over the one that they are read with, which is the gain: without it,
-- values would be right again, and by the recorded sums the error that is left is exact:
-- sum (x - q/ratio)^2 = sum_x2 - 2 sum_xq/ratio + sum_q2/ratio^2, least at ratio = sum_q2/sum_xq.
-- kind: names the hypothesis; best: the factor that fits best, whatever made it
-- rank_order: which one is told of two that explain as much
-- sqnr_db: SQNR as it is, dB; explained_sqnr_db: once the factor is taken out
create or replace temp table explanations as
with odd as (
    select
        c.segment, c.step, c.microbatch, c.rank, c.layer, c.tensor, c.recipe, c.fmt, c.seq, c.scale,
        e.sum_x2, e.sum_xq, e.sum_q2,
        current_scale(kernel_amax(t.amax, t.n_posinf, t.n_neginf), c.fmt)::double as own_scale
    from checked_payloads as c
    join stored.errors as e
        using (segment, step, microbatch, call, pass, rank, layer, tensor, recipe, fmt)
    join tensors as t on (t.segment, t.rank, t.seq) = (e.segment, e.rank, e.seq)
    where c.differs and e.source = 'payload' and e.sum_x2 > 0 and e.sum_q2 > 0
    -- Of each operand the first few and the last few tell as much as all.
    qualify least(
        row_number() over (partition by c.rank, c.layer, c.tensor, c.fmt order by c.segment, c.seq),
        row_number() over (partition by c.rank, c.layer, c.tensor, c.fmt order by c.segment desc, c.seq desc)
    ) <= 8
),
known_scales as (
    -- As they were recorded, and as the tensor itself would have them.
    select segment, step, rank, layer, tensor, fmt, seq, scale::double as known_scale, false as is_own
    from checked_payloads
    where scale > 0
    union all
    select
        t.segment, t.step, t.rank, t.layer, t.tensor, f.fmt, t.seq,
        current_scale(kernel_amax(t.amax, t.n_posinf, t.n_neginf), f.fmt)::double, true
    from tensors as t
    join (
        select layer, tensor, min(fmt) as fmt from checked_payloads where layer in (select layer from odd) group by all
    ) as f using (layer, tensor)
    where t.amax > 0
),
scales_near as (
    -- Scales that may have got in its place: those of the layer's other operands, and those of earlier steps.
    select
        o.segment, o.rank, o.seq, 'other ' || k.tensor as kind, format('the scale of {}', k.tensor) as whose,
        k.known_scale, k.is_own
    from odd as o
    join known_scales as k using (segment, step, rank, layer)
    where k.tensor <> o.tensor
    union all
    select
        o.segment, o.rank, o.seq, 'old ' || o.step - k.step,
        format(
            'the scale of {} earlier', case o.step - k.step when 1 then 'one step' else o.step - k.step || ' steps' end
        ),
        k.known_scale, k.is_own
    from odd as o
    join known_scales as k using (segment, rank, layer, tensor)
    where k.step < o.step and k.step >= o.step - 8
),
formats as (
    select unnest(['E4M3', 'E5M2', 'E4M3FNUZ', 'E2M1', 'E3M2', 'E2M3']) as name, fmt_max(name)::double as largest
),
hypotheses as (
    select segment, rank, seq, 'best' as kind, 9 as rank_order, null as explanation, ratio(sum_q2, sum_xq) as ratio
    from odd
    union all
    select
        segment, rank, seq, 'fnuz ' || factor, 0,
        format(
            'a byte of {} means {} of what it means in {}: the codes were written in one of them and are read in the '
            || 'other',
            case when factor = 2 then replace(fmt, 'FNUZ', '') else replace(fmt, 'FNUZ', '') || 'FNUZ' end,
            case when factor = 2 then 'twice' else 'half' end,
            case when factor = 2 then replace(fmt, 'FNUZ', '') || 'FNUZ' else replace(fmt, 'FNUZ', '') end
        ),
        factor
    from odd, (select unnest([2.0, 0.5]) as factor)
    where fmt like 'E_M_%' and fmt[2:2]::int >= 4
    union all
    select
        segment, rank, seq, format('max {} {}', a.name, b.name),
        case when fmt in (a.name, b.name) then 6 else 7 end,
        format(
            'the codes were made with a scale for {} (largest value {:g}) and are read with one for {} (largest value '
            || '{:g})',
            a.name, a.largest, b.name, b.largest
        ),
        a.largest / b.largest
    from odd, formats as a, formats as b
    where a.name <> b.name
    union all
    select segment, rank, seq, unnest(found.kind), 2, unnest(found.explanation), unnest(found.ratio)
    from (
        select
            segment, rank, seq,
            {
                'kind': ['made without', 'made twice', 'made inverse'],
                'explanation': [
                    'the codes were made without the scale that they are read with',
                    'the scale was applied twice before the cast',
                    'the codes were made with the inverse in the place of the scale'
                ],
                'ratio': [1 / scale::double, scale::double, power(scale, -2)]
            } as found
        from odd
        where scale > 0
    )
    union all
    select
        segment, rank, seq, found.kind, 1, found.explanation, own_scale / scale
    from (
        select *, unnest([
            {'kind': 'read without', 'read': 1.0::double, 'explanation': 'the codes are read without their scale'},
            {'kind': 'read twice', 'read': power(own_scale, 2),
             'explanation': 'the inverse of the scale is applied twice when the codes are read'},
            {'kind': 'read inverse', 'read': 1 / own_scale,
             'explanation': 'the codes are multiplied with the scale in the place of its inverse'}
        ]) as found
        from odd
        where scale > 0 and own_scale > 0
    )
    where abs(scale / found.read - 1) < 0.02
    union all
    select
        segment, rank, seq, 'rounded made', 5,
        'the codes were made with the scale rounded to a power of two, and are read with the scale itself',
        unnest([power(2, floor(log2(scale))), power(2, ceil(log2(scale)))]) / scale
    from odd
    where scale > 0 and log2(scale) <> floor(log2(scale))
    union all
    select
        segment, rank, seq, 'rounded read', 5,
        'the codes are read with the scale rounded to a power of two, but were made with the scale itself',
        own_scale / scale
    from odd
    where scale > 0 and own_scale > 0 and abs(log2(own_scale / scale)) < 1
      and abs(log2(scale) - round(log2(scale))) < 1e-6
    union all
    select segment, rank, seq, 'made ' || kind, 4, format('the codes were made with {}', whose), known_scale / scale
    from scales_near
    join odd using (segment, rank, seq)
    where scale > 0 and known_scale <> scale and not coalesce(is_own and abs(known_scale / own_scale - 1) < 0.02, false)
    union all
    select segment, rank, seq, 'read ' || kind, 3, format('the codes are read with {}', whose), own_scale / scale
    from scales_near
    join odd using (segment, rank, seq)
    where is_own and scale > 0 and own_scale > 0 and abs(scale / known_scale - 1) < 0.02
),
weighed as (
    select
        o.layer, o.tensor, o.recipe, o.fmt, o.rank, h.kind, h.rank_order, h.explanation, h.ratio, o.seq,
        sqnr_db(sum_x2, sum_x2 - 2 * sum_xq + sum_q2) as sqnr_db,
        sqnr_db(sum_x2, greatest(sum_x2 - 2 * sum_xq / ratio + sum_q2 / power(ratio, 2), 1e-12 * sum_x2))
            as explained_sqnr_db
    from odd as o
    join hypotheses as h using (segment, rank, seq)
    where h.ratio > 0 and isfinite(h.ratio)
)
select
    layer, tensor, recipe, fmt, rank, kind, any_value(explanation) as explanation, min(rank_order) as rank_order,
    count(distinct seq) as n_records, avg(sqnr_db) as sqnr_db, median(ratio) as ratio,
    avg(explained_sqnr_db) as explained_sqnr_db
from (
    select *
    from weighed
    qualify row_number() over (
        partition by layer, tensor, recipe, fmt, rank, kind, seq order by explained_sqnr_db desc
    ) = 1
)
group by layer, tensor, recipe, fmt, rank, kind;
