-- A share as text: 0.4 %, 57 %; small shares keep two significant digits.
-- Internal.
create or replace macro percent(share) as
    case
        when share >= 0.995 or share = 0 then format('{:.0f} %', 100 * share)
        when share >= 0.095 then format('{:.0f} %', 100 * share)
        when share >= 0.0095 then format('{:.1f} %', 100 * share)
        else format('{:.2g} %', 100 * share)
    end;
