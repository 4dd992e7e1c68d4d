-- part/whole as DOUBLE; NULL when whole is 0 or either is not finite, so that nothing poisons a mean.
create or replace macro ratio(part, whole) as
    case
        when whole <> 0 and isfinite(part::double) and isfinite(whole::double) then part::double / whole::double
    end;
