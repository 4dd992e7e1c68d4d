-- A threshold that exists once per format; the FNUZ formats round alike. NULL: the rules have no limits for the format.
-- Internal.
create or replace macro per_fmt(fmt, e4m3_value, e5m2_value) as
    case when fmt in ('E4M3', 'E4M3FNUZ') then e4m3_value when fmt in ('E5M2', 'E5M2FNUZ') then e5m2_value end;
