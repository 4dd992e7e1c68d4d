-- A threshold that exists once per format.
-- Internal.
create or replace macro per_fmt(fmt, e4m3_value, e5m2_value) as
    case fmt when 'E4M3' then e4m3_value when 'E5M2' then e5m2_value end;
