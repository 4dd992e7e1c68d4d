-- Whether an SQNR is below what rounding alone can give in this format.
-- Internal.
create or replace macro is_sqnr_hit(sqnr_db, fmt) as coalesce(sqnr_db < sqnr_floor_db(fmt), false);
