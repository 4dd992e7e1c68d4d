-- The power of two nearest to x (FLOAT -> FLOAT): ties up, saturating at 2^-127 (also for 0) and 2^127; negative: NaN.
-- Splitting as in round_to, to one significant bit: 1.5*2^k is halfway between an odd and an even significand, so that
-- ties to even go up. In DOUBLE, where nothing overflows and 2^-127 is a normal number.
create or replace macro e8m0(x) as
    case
        when isnan(x::float) or x::float < 0 then 'nan'::float
        when x::float >= 1.7014118346046923e38 then 1.7014118346046923e38::float
        when x::float <= 5.877471754111438e-39 then 5.877471754111438e-39::float
        else (x::float::double * 4503599627370497 - (x::float::double * 4503599627370497 - x::float::double))::float
    end;
