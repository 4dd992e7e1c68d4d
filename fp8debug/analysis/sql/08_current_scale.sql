-- Scale that current scaling gives for this amax: fmt_max/amax in FLOAT; 1 for 0, Inf or NaN; at most FLT_MAX.
create or replace macro current_scale(amax, fmt) as
    case
        when amax is null then null
        when amax::float = 0 or not isfinite(amax::float) then 1::float
        when isinf(fmt_max(fmt) / amax::float) then 3.4028234663852886e38::float
        else fmt_max(fmt) / amax::float
    end;
