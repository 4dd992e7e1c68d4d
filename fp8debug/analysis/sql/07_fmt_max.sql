-- Largest finite value of fmt: 448 for E4M3, 57344 for E5M2 (FLOAT).
create or replace macro fmt_max(fmt) as
    case fmt when 'E4M3' then 448::float when 'E5M2' then 57344::float end;
