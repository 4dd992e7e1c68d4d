-- Records that lose many values to underflow, and under which recipe.
select segment, rank, seq, recipe, fmt
from stored.errors
where source <> 'payload' and ratio(n_underflow, n_nonzero) > getvariable('underflow')
