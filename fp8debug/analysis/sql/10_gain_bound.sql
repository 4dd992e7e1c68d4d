-- How far rounding in `fmt` can move the gain from 1; NULL for a format that the rules have no limits for.
-- Internal.
create or replace macro gain_bound(fmt) as
    per_fmt(fmt, getvariable('gain_bound_e4m3'), getvariable('gain_bound_e5m2'));
