-- The E4M3FNUZ value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 240, NaN stays NaN.
create or replace macro e4m3fnuz(x) as
    round_to(x::float, 1048577::float, 0.0078125::float, 12288::float, 240::float);
