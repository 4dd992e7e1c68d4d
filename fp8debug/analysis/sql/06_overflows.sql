-- Whether an already scaled value rounds beyond the largest finite value of fmt: > 464 in E4M3, >= 61440 in E5M2.
create or replace macro overflows(scaled, fmt) as
    not isnan(scaled::float)
    and case fmt when 'E4M3' then abs(scaled::float) > 464 when 'E5M2' then abs(scaled::float) >= 61440 end;
