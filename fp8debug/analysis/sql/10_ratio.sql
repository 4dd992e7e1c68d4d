-- part/whole as DOUBLE; NULL where that has no value (whole is 0, or a sum overflowed), so that nothing poisons a mean.
create or replace macro ratio(part, whole) as
    case when isfinite(part::double / whole::double) then part::double / whole::double end;
