-- The records of valid rows, and those of padding rows.
select segment, rank, seq
from records
where row_class in ('valid', 'padding')
