-- Whether many values become zero while the small values together keep less than rounding would leave them.
-- Internal.
create or replace macro is_underflow_hit(underflow, sqnr_low_db, fmt) as
    coalesce(underflow > getvariable('underflow') and is_sqnr_hit(sqnr_low_db, fmt), false);
