-- Sampled: one row a record, recipe and format with every error metric, its scale and the scales beside it.
-- mse: mean squared error, in the square of the tensor's unit: never a rule by itself
-- sqnr_db: signal to quantisation noise, dB; NULL when all is zero or when nothing was lost (exact)
-- sqnr_low_db: the same over the smallest 99 % of the non-zero values: what is left when a few outliers set the scale
-- rel_l2: relative L2 error
-- cosine: blind to a wrong scale, read it with gain
-- gain: factor by which the values come back; 1 is right
-- underflow: share of the non-zero values that become zero
-- underflow_low: the same over the smallest 99 % of the non-zero values
-- underflow_all: values that become zero as a share of all elements
-- overflow: share of the elements beyond the largest finite value of the format
-- exact: true when quantisation changed nothing
-- amin: smallest non-zero magnitude of the finite elements
-- amax: largest magnitude of the finite elements
-- scale: scale in force, the one these numbers belong to
-- current_scale: scale that current scaling gives this record in the same format
-- delayed_scale: scale of this recipe when it has a history, else of the run's first such recipe
-- scale_gap_bits: log2(scale / current_scale): > 0 clips, < 0 wastes range
-- gap_source: framework | simulated: whose scale the gap is about
-- n_rolls: amaxes that the recipe's history has consumed; NULL without a history
-- healthy_sqnr_db: SQNR of bell-shaped tensors at a perfect scale in this format
-- db_lost: how far sqnr_db, or sqnr_low_db when that is lower, is below healthy_sqnr_db
create or replace view tensor_errors as
select
    r.* exclude (is_stateful),
    case when r.is_stateful then r.scale else d.scale end as delayed_scale,
    case when r.scale_gap_bits is not null then r.source end as gap_source
from error_ratios as r
left join (
    select segment, rank, seq, fmt, arg_min(scale, recipe) as scale
    from stored.scales
    group by segment, rank, seq, fmt
) as d using (segment, rank, seq, fmt);
