-- Imported: what another tool has logged of an operand, one row a step, recipe and orientation: the worst it gave.
-- Of several ranks and uses in a step the largest value counts, and of scale_inv_min the smallest.
-- recipe: kind of recipe that the numbers' names have; NULL: they name none, so that in use
-- fmt: element format, where the names leave one alone; else NULL
-- columnwise: whether the numbers are of the tensor as quantised for its use along columns
-- amax: largest magnitude, given or the larger of |min| and |max|; NULL in rows of a recipe
-- underflow_all: share of all elements, zeros included, that are not zero and become zero
-- overflow: share of the elements beyond the largest finite value of the format
-- mse: mean squared error, in the square of the tensor's unit
-- mse_at_floor: whether an mse was printed as 0.0000, so that only an upper bound is known
-- scale_inv_min: smallest scale_inv; under mxfp8 the code of the exponent
-- scale_inv_max: largest scale_inv; under mxfp8 the code of the exponent
-- std: standard deviation
-- dynamic_range: log2 of the largest over the smallest non-zero magnitude, bits
create or replace view given_statistics as
with numbers as (
    select
        layer, tensor, step, recipe, fmt, columnwise,
        max(value) filter (statistic = 'underflow_all') as underflow_all,
        max(value) filter (statistic = 'overflow') as overflow,
        max(value) filter (statistic = 'mse') as mse,
        coalesce(bool_or(at_floor) filter (statistic = 'mse'), false) as mse_at_floor,
        min(value) filter (statistic = 'scale_inv_min') as scale_inv_min,
        max(value) filter (statistic = 'scale_inv_max') as scale_inv_max,
        max(value) filter (statistic = 'std') as std,
        max(value) filter (statistic = 'dynamic_range') as dynamic_range
    from statistics
    group by all
),
largest as (
    select layer, tensor, step, max(amax) as amax
    from tensors
    where status = 'imported'
    group by all
)
select
    layer, tensor, step, recipe, fmt, columnwise, if(recipe is null and not columnwise, amax, null) as amax,
    underflow_all, overflow, mse, mse_at_floor, scale_inv_min, scale_inv_max, std, dynamic_range
from numbers
left join largest using (layer, tensor, step);
