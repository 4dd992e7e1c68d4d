-- Whether an already scaled value rounds beyond the largest finite value of fmt: > 464 in E4M3, >= 61440 in E5M2, etc.
create or replace macro overflows(scaled, fmt) as
    not isnan(scaled::float)
    and case fmt
        when 'E4M3' then abs(scaled::float) > 464
        when 'E5M2' then abs(scaled::float) >= 61440
        when 'E4M3FNUZ' then abs(scaled::float) >= 248
        when 'E5M2FNUZ' then abs(scaled::float) >= 61440
        when 'E3M2' then abs(scaled::float) >= 30
        when 'E2M3' then abs(scaled::float) >= 7.75
        when 'E2M1' then abs(scaled::float) >= 7
        when 'E8M0' then scaled::float >= 2.5521177519070385e38
    end;
