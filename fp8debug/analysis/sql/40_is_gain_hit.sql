-- Whether values come back too large or too small by more than rounding can make them.
-- Internal.
create or replace macro is_gain_hit(gain, fmt) as
    coalesce(abs(gain - 1) > per_fmt(fmt, getvariable('gain_bound_e4m3'), getvariable('gain_bound_e5m2')), false);
