-- The E3M2 value nearest to x (FLOAT -> FLOAT): ties to even, saturating at 28, NaN stays NaN.
create or replace macro e3m2(x) as
    round_to(x::float, 2097153::float, 0.25::float, 786432::float, 28::float);
