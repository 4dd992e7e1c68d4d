-- Format of a payload's codes, by the dtype of its record; NULL for high precision.
-- Internal.
create or replace macro payload_fmt(dtype) as
    case dtype
        when 'float8_e4m3fn' then 'E4M3'
        when 'float8_e5m2' then 'E5M2'
        when 'float8_e4m3fnuz' then 'E4M3FNUZ'
        when 'float8_e5m2fnuz' then 'E5M2FNUZ'
        when 'float6_e3m2fn' then 'E3M2'
        when 'float6_e2m3fn' then 'E2M3'
        when 'float4_e2m1fn' then 'E2M1'
        when 'float8_e8m0fnu' then 'E8M0'
    end;
