-- SQNR in dB that rounding in `fmt` gives at worst; NULL for a format that the rules have no limits for.
-- Internal.
create or replace macro sqnr_floor_db(fmt) as
    per_fmt(fmt, getvariable('sqnr_floor_e4m3'), getvariable('sqnr_floor_e5m2'));
