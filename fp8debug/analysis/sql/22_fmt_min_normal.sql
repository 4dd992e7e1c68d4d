-- Smallest normal value of fmt: 2^-6 for E4M3, 2^-14 for E5M2, etc. (FLOAT); NULL for an unknown format.
-- Internal.
create or replace macro fmt_min_normal(fmt) as
    case fmt
        when 'E4M3' then 0.015625::float
        when 'E5M2' then 0.00006103515625::float
        when 'E4M3FNUZ' then 0.0078125::float
        when 'E5M2FNUZ' then 0.000030517578125::float
        when 'E3M2' then 0.25::float
        when 'E2M3' then 1::float
        when 'E2M1' then 1::float
        when 'E8M0' then 0::float
    end;
