-- The value of the format called fmt nearest to x, as the macro of its name gives it; NULL for another name.
create or replace macro quantize(x, fmt) as
    case fmt
        when 'E4M3' then e4m3(x)
        when 'E5M2' then e5m2(x)
        when 'E4M3FNUZ' then e4m3fnuz(x)
        when 'E5M2FNUZ' then e5m2fnuz(x)
        when 'E3M2' then e3m2(x)
        when 'E2M3' then e2m3(x)
        when 'E2M1' then e2m1(x)
        when 'E8M0' then e8m0(x)
    end;
