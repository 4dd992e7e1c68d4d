-- The value of format fmt ('E4M3' or 'E5M2') nearest to x, saturating; NULL for another format.
create or replace macro quantize(x, fmt) as
    case fmt when 'E4M3' then e4m3(x) when 'E5M2' then e5m2(x) end;
