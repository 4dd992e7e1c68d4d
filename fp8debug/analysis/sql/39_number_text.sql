-- A number as text in four digits; whole ones below a million with one decimal.
-- Internal.
create or replace macro number_text(number) as
    case when number = floor(number) and abs(number) < 1e6 then format('{:.1f}', number::double)
    else format('{:.4g}', number::double) end;
