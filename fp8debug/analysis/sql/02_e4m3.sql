-- The E4M3 value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 448, NaN stays NaN.
create or replace macro e4m3(x) as
    round_to(x::float, 1048577::float, 0.015625::float, 24576::float, 448::float);
