-- Scale gap in bits, log2(scale / scale of current scaling): > 0 clips, < 0 wastes range; NULL for amax 0, Inf, NaN.
-- Scales that differ by a few roundings of a FLOAT are the same one: 0.
create or replace macro gap_bits(scale, amax, fmt) as
    case
        when amax::float > 0 and isfinite(amax::float) and scale > 0 and isfinite(scale::float)
        then case
            when abs(scale::double / current_scale(amax, fmt)::double - 1) < 1e-6 then 0
            else log2(scale::double / current_scale(amax, fmt)::double)
        end
    end;
