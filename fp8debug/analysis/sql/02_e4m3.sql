-- The E4M3 value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 448, NaN stays NaN.
create or replace macro e4m3(x) as
    round_to(x::float::double, 562949953421313.0::double, 0.015625::double, 13194139533312.0::double, 448.0::double)::float;
