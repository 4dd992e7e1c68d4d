-- Largest finite value of fmt: 448 for E4M3, 57344 for E5M2, 6 for E2M1, etc. (FLOAT); NULL for an unknown format.
create or replace macro fmt_max(fmt) as
    case fmt
        when 'E4M3' then 448::float
        when 'E5M2' then 57344::float
        when 'E4M3FNUZ' then 240::float
        when 'E5M2FNUZ' then 57344::float
        when 'E3M2' then 28::float
        when 'E2M3' then 7.5::float
        when 'E2M1' then 6::float
        when 'E8M0' then 1.7014118346046923e38::float
    end;
