-- Whether an SQNR is below what rounding alone can give in this format.
-- Internal.
create or replace macro is_sqnr_hit(sqnr_db, fmt) as
    coalesce(sqnr_db < per_fmt(fmt, getvariable('sqnr_floor_e4m3'), getvariable('sqnr_floor_e5m2')), false);
