-- A finite or infinite DOUBLE rounded to p significant bits, ties to even, subnormals and saturation included.
-- Veltkamp's splitting: t = a*(2^(53-p) + 1), q = t - (t - a). Below the smallest normal, adding a constant whose last
-- bit is the subnormal step rounds instead. Arguments: split = 2^(53-p) + 1, tiny = smallest normal,
-- shift = 1.5*2^52 subnormal steps, top = largest finite value.
create or replace macro round_to(a, split, tiny, shift, top) as
    case
        when abs(a) < tiny then (a + shift) - shift
        when abs(a) <= top then a * split - (a * split - a)
        when isnan(a) then a
        else sign(a) * top
    end;
