-- The E2M3 value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 7.5, NaN stays NaN.
create or replace macro e2m3(x) as
    round_to(x::float, 1048577::float, 1::float, 1572864::float, 7.5::float);
