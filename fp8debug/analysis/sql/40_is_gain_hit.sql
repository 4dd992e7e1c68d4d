-- Whether values come back too large or too small by more than rounding can make them.
-- Internal.
create or replace macro is_gain_hit(gain, fmt) as coalesce(abs(gain - 1) > gain_bound(fmt), false);
