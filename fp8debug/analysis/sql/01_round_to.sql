-- A FLOAT rounded to p significant bits, ties to even, subnormals and saturation included.
-- Internal.
-- Veltkamp's splitting: q = a*s - (a*s - a) with s = 2^(24-p) + 1, right for every significand. Below the smallest
-- normal, adding a constant whose last bit is the subnormal step rounds instead. Arguments: split = s, tiny = smallest
-- normal, shift = 1.5*2^23 subnormal steps, top = largest finite value, all FLOAT.
create or replace macro round_to(a, split, tiny, shift, top) as
    case
        when abs(a) between tiny and top then a * split - (a * split - a)
        when abs(a) < tiny then (a + shift) - shift
        when isnan(a) then a
        else sign(a) * top
    end;
