-- How the median channel and the median token of the candidates fare; one row an operand, recipe, format and axis.
-- Internal.
-- Of the records that hit alone: what came before a fault says nothing of it.
-- sqnr_db: SQNR of the median channel, dB, from bins of 1 dB; NULL when it was not measured
-- underflow: share of its non-zero values that become zero, from bins of 1 %
create or replace view typical_channels as
with binned as (
    select layer, tensor, recipe, fmt, axis, measure, unnest(bins) as bin, unnest(counts) as count
    from channels
    where measure in ('sqnr_db', 'underflow') and not alternate and is_judged_pass(pass)
      and (layer, tensor) in (select (layer, tensor) from told_candidates)
      and (segment, rank, seq, recipe, fmt) in (
          select (segment, rank, seq, recipe, fmt)
          from evidence
          where series = 'sampled' and (hit_underflow or hit_sqnr or hit_gain or hit_gap)
      )
),
running as (
    select
        *, sum(count) over (same order by bin) as up_to, sum(count) over same as total
    from (select * replace (sum(count) as count) from binned group by all)
    window same as (partition by layer, tensor, recipe, fmt, axis, measure)
),
medians as (
    select layer, tensor, recipe, fmt, axis, measure, bin_edge(measure, min(bin)) as value
    from running
    where up_to >= total * 0.5
    group by layer, tensor, recipe, fmt, axis, measure
)
select
    layer, tensor, recipe, fmt, case when axis = 'token' then 'token' else 'channel' end as axis,
    min(value) filter (measure = 'sqnr_db') as sqnr_db, max(value) filter (measure = 'underflow') as underflow
from medians
group by all;
