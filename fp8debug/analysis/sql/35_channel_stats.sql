-- One row an operand, axis, measure and recipe over the whole run: the typical, the worst 1 % and the worst channel.
-- Evaluation and recomputed passes are left out. Values from bins are the bins' lower edges: amax to a quarter of an
-- octave, sqnr_db to 1 dB, underflow (a share) to 0.01. All-zero and exact channels are in no bin and not ranked.
-- n_records: records that were merged
-- n_channels: channels seen, over all records
-- n_zero: those that are all zero
-- n_exact: sqnr_db: those without any error
-- median: half of the channels are below
-- worst_percentile: the worst 1 % of the channels begin here: above it for amax and underflow, below it for sqnr_db
-- worst_value: the worst channel's value, from no bin
-- worst_channel: its index along the axis
-- worst_step: the step in which it was seen
create or replace view channel_stats as
with recorded as (
    select *, case measure when 'sqnr_db' then -worst_value else worst_value end as badness
    from channels
    where is_judged_pass(pass)
),
merged as (
    select
        layer, tensor, axis, measure, recipe, fmt, alternate,
        count(*) as n_records, sum(n_channels)::bigint as n_channels, sum(n_zero)::bigint as n_zero,
        sum(n_exact)::bigint as n_exact, arg_max(worst_value, badness) as worst_value,
        arg_max(worst_channel, badness) as worst_channel, arg_max(step, badness) as worst_step
    from recorded
    group by all
),
binned as (
    select layer, tensor, axis, measure, recipe, fmt, alternate, bin, sum(count) as count
    from (select *, unnest(bins) as bin, unnest(counts) as count from recorded)
    group by all
),
running as (
    select
        *, sum(count) over (operand order by bin) as up_to, sum(count) over operand as total
    from binned
    window operand as (partition by layer, tensor, axis, measure, recipe, fmt, alternate)
),
quantiles as (
    select
        layer, tensor, axis, measure, recipe, fmt, alternate,
        min(bin) filter (up_to >= total * 0.5) as middle,
        min(bin) filter (up_to >= total * case measure when 'sqnr_db' then 0.01 else 0.99 end) as edge
    from running
    group by all
)
select
    m.layer, m.tensor, m.axis, m.measure, m.recipe, m.fmt, m.alternate,
    m.n_records, m.n_channels, m.n_zero, m.n_exact,
    bin_edge(m.measure, q.middle) as median, bin_edge(m.measure, q.edge) as worst_percentile,
    m.worst_value, m.worst_channel, m.worst_step
from merged as m
left join quantiles as q
    on (m.layer, m.tensor, m.axis, m.measure) = (q.layer, q.tensor, q.axis, q.measure)
    and m.recipe is not distinct from q.recipe and m.fmt is not distinct from q.fmt
    and m.alternate is not distinct from q.alternate;
