-- Whether many values become zero, and the small values, or the median channel, keep less than rounding leaves them.
-- Internal.
-- channel_db: SQNR of the median channel, dB; NULL where channels were not recorded
create or replace macro is_underflow_hit(underflow, sqnr_low_db, channel_db, fmt) as
    coalesce(underflow > getvariable('underflow') and is_sqnr_hit(least(sqnr_low_db, channel_db), fmt), false);
