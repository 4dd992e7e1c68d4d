-- SQNR in dB of a bell-shaped tensor at a good scale in `fmt`; NULL for a format that the rules have no limits for.
-- Internal.
create or replace macro baseline_db(fmt) as per_fmt(fmt, getvariable('baseline_e4m3'), getvariable('baseline_e5m2'));
