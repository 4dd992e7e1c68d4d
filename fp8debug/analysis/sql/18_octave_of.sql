-- The octave of a FLOAT, from its bits: e where 2^e <= |x| < 2^(e+1); NULL for 0 and NULL, 128 for Inf and NaN.
-- Internal.
-- A subnormal value of FLOAT is made normal first: a factor of 2^24 is exact.
create or replace macro octave_of(x) as
    case
        when x::float = 0 then null
        when abs(x::float) < 1.1754943508222875e-38::float
        then (((abs(x::float) * 16777216::float)::bit)::integer >> 23) - 151
        else ((abs(x::float)::bit)::integer >> 23) - 127
    end;
