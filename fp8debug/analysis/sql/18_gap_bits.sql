-- Scale gap in bits, log2(scale / scale of current scaling): > 0 clips, < 0 wastes range; NULL for amax 0, Inf, NaN.
create or replace macro gap_bits(scale, amax, fmt) as
    case
        when amax::float > 0 and isfinite(amax::float) and scale > 0 and isfinite(scale::float)
        then log2(scale::double / current_scale(amax, fmt)::double)
    end;
